"""What a caller of the queue may have to handle."""

from core.errors import Conflict


class ReceiptDiffers(Conflict):
    """The entry has ended with another receipt. The recorded truth stays."""

    code = "receipt_differs"
