"""An observation as openpi's clients of a robot send it, by the contract's section `openpi`.

The other way of `websocket.dialect`. Knows keys, pixels and numbers. Does not know sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from embodied_kv.robots.contract import Contract
from embodied_kv.serving.websocket.dialect import PROMPT


@dataclass(frozen=True)
class RequestWriter:
    """image_size: pixels of a picture's longer side, at most; 0: as it is. None is enlarged."""

    contract: Contract
    image_size: int = 0

    def write(
        self, images: Mapping[str, NDArray[np.uint8]], state: NDArray[np.float64], prompt: str
    ) -> dict[str, object]:
        """A request for a chunk.

        images: of the views that there are, uint8 [height, width, 3]. state: [state_dim], in the
        policy's units. Raises ValueError for a view that a client has to send.
        """
        robot, client = self.contract.robot_type, self.contract.clients
        request: dict[str, object] = {PROMPT: prompt}
        for view, key in client.views.items():
            if view in images:
                self._put(request, key, self._picture(images[view]))
            elif view not in client.optional:
                raise ValueError(
                    f'view {view} is missing, and a client of {robot} has to send {key}: where '
                    f'the server can do without, the contract says openpi: {{optional: [{view}]}}'
                )
        begin = 0
        for key, count in client.state.items():
            numbers = np.asarray(state[begin : begin + count], np.float64)
            self._put(request, key, numbers)
            begin += count
        return request

    def _put(self, request: dict, key: str, value: object) -> None:
        """Under its key, or in the map that openpi's clients have of that name."""
        head, _, rest = key.partition('/')
        if rest and head in self.contract.clients.nested:
            request.setdefault(head, {})[rest] = value
        else:
            request[key] = value

    def _picture(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        longer = max(pixels.shape[:2])
        if 0 < self.image_size < longer:
            height, width = (
                max(1, round(side * self.image_size / longer)) for side in pixels.shape[:2]
            )
            small = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(small)
        if self.contract.clients.channels_first:
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels)
