// Search in pages that are opened from the disk. Browsers start no Worker from file:, so that this one runs
// the script of the search in a hidden frame, which is allowed to load it.
"use strict";
if (window.location.protocol === "file:") {
  window.Worker = class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.document.open();
      inner.document.write("<!doctype html><title>search</title>");
      inner.document.close();
      inner.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      const script = inner.document.createElement("script");
      script.src = new URL(url, document.baseURI).href;
      script.onload = () => {
        for (const data of this.waiting.splice(0)) this.deliver(data);
        this.isReady = true;
      };
      inner.document.head.append(script);
    }

    deliver(data) {
      const inner = this.frame.contentWindow;
      inner.dispatchEvent(new inner.MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.isReady) this.deliver(data);
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
