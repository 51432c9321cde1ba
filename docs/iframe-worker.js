// A page that is opened from a folder may start no worker, so the search runs in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.scope = new Promise((ready) => {
        const script = scope.document.createElement("script");
        script.src = url;
        script.onload = () => ready(scope);
        scope.document.body.append(script);
      });
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
    }
  };
}
