// Shows a warning before the notebook is suspended. This is a module federation container, the format
// in which JupyterLab loads extensions; it is small enough to write without a bundler.
(() => {
  const POLL_MILLISECONDS = 10000;
  const { baseUrl } = JSON.parse(document.getElementById("jupyter-config-data").textContent);

  const activate = (app) => {
    let shown = null;
    const poll = async () => {
      const answer = await fetch(`${baseUrl}gpu-platform/idle`).catch(() => null);
      if (!answer || !answer.ok) return;
      const { suspended_in: seconds } = await answer.json();
      if (seconds !== null && shown === null) {
        const minutes = Math.max(Math.round(seconds / 60), 1);
        shown = await app.commands.execute("apputils:notify", {
          message: `This notebook is idle and will be suspended in ${minutes} min. Run a cell to keep it running.`,
          type: "warning",
          options: { autoClose: false },
        });
      } else if (seconds === null && shown !== null) {
        await app.commands.execute("apputils:dismiss-notification", { id: shown });
        shown = null;
      }
    };
    app.restored.then(() => {
      setInterval(poll, POLL_MILLISECONDS);
      poll();
    });
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["gpu-platform-idle"] = {
    init: async () => {},
    get: async () => () => ({
      __esModule: true,
      default: { id: "gpu-platform-idle:plugin", autoStart: true, activate },
    }),
  };
})();
