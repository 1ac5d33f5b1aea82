// The button that opens the panel in a view of its own, where the front end has one and lets a page reach its commands:
// JupyterLab and Notebook 7 do if they expose their application (--expose-app-in-browser).

import { iconOnly } from "./icons.js";

const COMMAND = "notebook:create-output-view";

/**
 * The application of the front end, if the page can reach it and it can open the view.
 * @returns {any} it has no types here
 */
function application() {
  const page = /** @type {Record<string, any>} */ (/** @type {unknown} */ (window)),
    app = page.jupyterapp ?? page.jupyterlab;
  return app?.commands?.hasCommand?.(COMMAND) ? app : null;
}

export class Dock {
  constructor() {
    this.button = iconOnly("dock", "Dock", () => this.open(), { title: "Open the panel in a view of its own", hidden: true });
  }

  /**
   * A panel that is in such a view already needs no button. The output of a run that is over is the static panel.
   * @param {boolean} isOver
   */
  update(isOver) {
    this.button.hidden = isOver || !this.button.closest(".jp-NotebookPanel") || !application();
  }

  open() {
    const app = application(),
      area = this.button.closest(".jp-NotebookPanel"),
      cell = this.button.closest(".jp-Cell");
    for (const notebook of app?.shell.widgets("main") ?? []) {
      const index = notebook.node === area ? notebook.content.widgets.findIndex((/** @type {any} */ one) => one.node === cell) : -1;
      if (index >= 0) app.commands.execute(COMMAND, { path: notebook.context.path, index });
    }
  }
}
