"""A calculator for the command line and for other programs."""

# operations: begin
# operations: end
