"""Reports progress, time left and metrics of a TrainJob to Kubeflow Trainer, if its variables are set.

`kubectl get trainjob` and Kubeflow's dashboard show them (proposal 2779 of kubeflow/trainer). Training neither waits
for the server nor needs it.
"""

from __future__ import annotations

import datetime
import http.client
import json
import math
import os
import pathlib
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trainer.callbacks.base import Callback
from trainer.loop import Action, Progress

if TYPE_CHECKING:
    from trainer.task import Evaluation

URL, CA_CERT, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
SECONDS = 10.0  # between two reports; Kubeflow asks for at least 5
_TIMEOUT = 5.0  # seconds
_MOST_METRICS, _LONGEST = 256, 64  # metrics, and characters of a name, that the server accepts
_MOST_SECONDS = 2**31 - 1

_Status = dict[str, object]


class KubeflowReporter(Callback):
    """Posts the status of a run from the chief, if the variables are set; otherwise does nothing.

    Args:
      last_step: step at which training ends.
      is_chief: whether this process reports.
      say: prints a line; called once, if a report fails.
    """

    def __init__(self, last_step: int, is_chief: bool, say: Callable[[str], None]) -> None:
        self._last_step, self._say = last_step, say
        self._on = is_chief and all(os.environ.get(name) for name in (URL, CA_CERT, TOKEN))
        self._thread: threading.Thread | None = None
        self._problem: str | None = None
        self._said = False
        self._began: tuple[float, int] | None = None  # when, and at which step
        self._evaluated: dict[str, float] = {}

    def actions(self) -> list[Action]:
        """Returns the report, due every few seconds."""
        return [Action(0, self.report, seconds=SECONDS if self._on else 0.0)]

    def on_loop(self, progress: Progress) -> None:
        """Starts the clock for the time left with the first inner loop."""
        self._began = self._began or (time.monotonic(), progress.step)

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Keeps the numbers for later reports."""
        self._evaluated.update(evaluation.scalars())

    def report(self, progress: Progress) -> None:
        """Posts the progress, in the background."""
        if self._on and not (self._thread and self._thread.is_alive()):
            self._say_problem()
            content = status(
                progress.step, self._last_step, self._left(progress.step), {**progress.means, **self._evaluated}
            )
            self._thread = threading.Thread(target=self._post, args=(content,), name="Kubeflow", daemon=True)
            self._thread.start()

    def on_end(self, step: int) -> None:
        """Posts that the run is done, and waits a few seconds for the answer."""
        if self._on:
            if self._thread:
                self._thread.join(_TIMEOUT)
            self._post(status(self._last_step, self._last_step, 0.0, {**self._evaluated, "step": step}))
            self._say_problem()

    def _left(self, step: int) -> float | None:
        """Returns the estimated seconds until the last step; None before the second inner loop."""
        if self._began is None or step <= self._began[1]:
            return None
        when, first = self._began
        return (self._last_step - step) * (time.monotonic() - when) / (step - first)

    def _post(self, content: _Status) -> None:
        try:
            post(content)
        except urllib.error.HTTPError as error:
            self._problem = f"HTTP {error.code} {error.reason}"
        except (OSError, ValueError, http.client.HTTPException) as error:  # a file, the connection, the address
            self._problem = str(getattr(error, "reason", None) or error) or type(error).__name__

    def _say_problem(self) -> None:
        if self._problem and not self._said:
            self._said = True
            self._say(f"note: Kubeflow Trainer does not get the progress ({self._problem}); training continues")


def status(step: int, last_step: int, left: float | None, values: Mapping[str, float]) -> _Status:
    """Returns a status in the form of Kubeflow Trainer's API.

    Args:
      step: global step.
      last_step: step at which training ends.
      left: estimated seconds until the last step; None: unknown.
      values: metrics by name.
    """
    finite = {name[:_LONGEST]: value for name, value in values.items() if math.isfinite(value)}
    metrics = {"step": step, **finite}
    return {
        "progressPercentage": 100 * step // last_step if last_step else 100,
        **({} if left is None else {"estimatedRemainingSeconds": min(round(left), _MOST_SECONDS)}),
        "metrics": [{"name": name, "value": f"{value:.6g}"} for name, value in list(metrics.items())[:_MOST_METRICS]],
        "lastUpdatedTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def post(content: _Status) -> None:
    """Posts a status to the server that the variables name. Reads certificate and token each time, since they change.

    Raises:
      OSError: a file cannot be read, or the server cannot be reached.
      HTTPError: the server refuses the status.
      HTTPException: it does not speak HTTP.
      ValueError: the address or the token cannot be used.
    """
    url = os.environ[URL]
    if not url.startswith("https://"):  # or the token would be sent in plain text
        raise ValueError(f"{URL}={url}: not an https:// address")
    token = pathlib.Path(os.environ[TOKEN]).read_text(encoding="ascii").strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"trainerStatus": content}).encode()
    trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=os.environ[CA_CERT]))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)  # the server is in the cluster
    with opener.open(urllib.request.Request(url, body, headers, method="POST"), timeout=_TIMEOUT):
        pass
