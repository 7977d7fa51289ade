// One websocket to the feed that comes back by itself and resumes where it was, so nothing is missed or seen twice.
const NOT_SIGNED_IN = 4401;

export class Feed {
  // on: {event(frame), state(name), reset()}
  constructor(topic, sequence, on) {
    Object.assign(this, { topic, sequence, on, failures: 0 });
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => document.hidden || this.retry());
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.timer = null;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = (this.socket = new WebSocket(`${scheme}://${location.host}/ws/feed`));
    socket.onopen = () => socket.send(JSON.stringify({ subscribe: [this.topic], since: this.sequence }));
    socket.onmessage = (message) => this.receive(JSON.parse(message.data));
    socket.onclose = (closed) => this.closed(closed.code);
  }

  receive(frame) {
    if ("reset" in frame) {
      this.sequence = frame.reset;
      this.on.reset();
      return;
    }
    this.sequence = frame.hello ?? frame.seq;
    if ("hello" in frame) {
      this.failures = 0;
      this.on.state("live");
    } else {
      this.on.event(frame);
    }
  }

  closed(code) {
    if (code === NOT_SIGNED_IN) {
      location.reload(); // which leads to the sign-in page and back
      return;
    }
    this.on.state("reconnecting");
    const wait = Math.min(30, 0.5 * 2 ** this.failures++) * (0.5 + Math.random()); // a restarted server must not meet all at once
    this.timer = setTimeout(() => this.open(), wait * 1000);
  }

  retry() {
    if (this.timer) this.open();
  }
}
