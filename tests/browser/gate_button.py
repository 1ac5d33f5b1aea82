"""A widget of the gate's tests: a click sends the field's text in one message."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import anywidget
import traitlets

from agentnb.notebook.comm_gate import comm_gate
from agentnb.notebook.environment import KernelEnvironment

ESM = """
export default {
  render({ model, el }) {
    const field = document.createElement("textarea");
    field.setAttribute("aria-label", "Reason");
    field.addEventListener("input", () => { model.set("typed", field.value); model.save_changes(); });
    const button = document.createElement("button");
    button.textContent = "Approve";
    button.addEventListener("click", () => model.send({ text: field.value }));
    const status = document.createElement("output");
    const show = () => { status.textContent = model.get("status"); };
    model.on("change:status", show);
    show();
    el.append(field, button, status);
  },
};
"""


class GateButton(anywidget.AnyWidget):
    """Counts its clicks; `future` is done with the first click's text."""

    _esm = ESM
    typed = traitlets.Unicode().tag(sync=True)
    status = traitlets.Unicode("waiting").tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.future: Future[str] = Future()
        self.clicks = 0
        self.on_msg(self._clicked)
        comm_gate().register(self.comm.comm_id)

    def wait(self) -> str:
        """Block the cell until the first click."""
        KernelEnvironment().wait(self.future)
        return self.future.result()

    async def wait_async(self) -> str:
        """Await the first click."""
        await KernelEnvironment().wait_async(self.future)
        return self.future.result()

    def _clicked(self, _: object, content: dict[str, Any], __: object) -> None:
        self.clicks += 1
        self.status = f"clicked {self.clicks}"
        if not self.future.done():
            self.future.set_result(content["text"])
