"""Actions relative to a reference: differences of numbers, and relative poses of position and rotation.

A pose is (x, y, z) and a rotation: `quaternion` (w, x, y, z), `quaternion_xyzw`, `axis_angle` (3 numbers), `euler`
(roll, pitch, yaw in radians: R = Rz(yaw)·Ry(pitch)·Rx(roll)) or `6d` (the first two columns of the rotation matrix).
Relative to a reference it is expressed in the frame of the reference: R_ref⁻¹·(p - p_ref) and R_ref⁻¹·R.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

POSES = ("quaternion", "quaternion_xyzw", "axis_angle", "euler", "6d")
_WIDTHS = {"quaternion": 4, "quaternion_xyzw": 4, "axis_angle": 3, "euler": 3, "6d": 6}
_XYZW = [3, 0, 1, 2]
_SMALL = 1e-12

Array = NDArray[Any]


def pose_width(pose: str | None) -> int:
    """How many numbers of a row are the pose."""
    return 0 if pose is None else 3 + _WIDTHS[pose]


def subtract(values: Array, reference: Array, pose: str | None, except_dims: tuple[int, ...]) -> Array:
    """Values relative to a reference of the same width, in float64."""
    values, reference = values.astype(np.float64), reference.astype(np.float64)
    out = values - reference
    if pose is not None:
        width = pose_width(pose)
        rotation = _matrix(reference[..., 3:width], pose)
        inverse = np.swapaxes(rotation, -1, -2)
        out[..., :3] = _rotate(inverse, out[..., :3])
        out[..., 3:width] = _rotation(inverse @ _matrix(values[..., 3:width], pose), pose)
    out[..., list(except_dims)] = values[..., list(except_dims)]
    return out


def add(values: Array, reference: Array, pose: str | None, except_dims: tuple[int, ...]) -> Array:
    """The inverse of `subtract`."""
    values, reference = values.astype(np.float64), reference.astype(np.float64)
    out = values + reference
    if pose is not None:
        width = pose_width(pose)
        rotation = _matrix(reference[..., 3:width], pose)
        out[..., :3] = _rotate(rotation, values[..., :3]) + reference[..., :3]
        out[..., 3:width] = _rotation(rotation @ _matrix(values[..., 3:width], pose), pose)
    out[..., list(except_dims)] = values[..., list(except_dims)]
    return out


def accumulate(deltas: Array, before: Array, pose: str | None, except_dims: tuple[int, ...]) -> Array:
    """The inverse of differences of each row to the one before; `before` is the row before the first."""
    rows, last = [], before.astype(np.float64)
    for row in range(deltas.shape[-2]):
        last = add(deltas[..., row, :], last, pose, except_dims)
        rows.append(last)
    return np.stack(rows, axis=-2)


def _rotate(rotation: Array, vectors: Array) -> Array:
    return np.asarray(np.einsum("...ij,...j->...i", rotation, vectors))


def _matrix(values: Array, pose: str) -> Array:
    """Rotation matrices of a representation."""
    if pose == "euler":
        return _euler_matrix(values)
    if pose == "6d":
        first = _unit(values[..., :3])
        second = values[..., 3:]
        second = _unit(second - (first * second).sum(-1, keepdims=True) * first)
        return np.stack([first, second, np.cross(first, second)], axis=-1)
    if pose == "axis_angle":
        angle = np.linalg.norm(values, axis=-1, keepdims=True)
        share = np.where(angle < _SMALL, 0.5, np.sin(angle / 2) / np.maximum(angle, _SMALL))
        quaternion = np.concatenate([np.cos(angle / 2), values * share], axis=-1)
    else:
        quaternion = values[..., _XYZW] if pose == "quaternion_xyzw" else values
    w, x, y, z = np.moveaxis(_unit(quaternion), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _euler_matrix(values: Array) -> Array:
    (cx, cy, cz), (sx, sy, sz) = np.moveaxis(np.cos(values), -1, 0), np.moveaxis(np.sin(values), -1, 0)
    rows = [
        [cy * cz, sx * sy * cz - cx * sz, cx * sy * cz + sx * sz],
        [cy * sz, sx * sy * sz + cx * cz, cx * sy * sz - sx * cz],
        [-sy, sx * cy, cx * cy],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _rotation(matrix: Array, pose: str) -> Array:
    """The representation of rotation matrices; quaternions with w of 0 or more."""
    if pose == "6d":
        return np.concatenate([matrix[..., :, 0], matrix[..., :, 1]], axis=-1)
    if pose == "euler":
        pitch = np.arcsin(np.clip(-matrix[..., 2, 0], -1.0, 1.0))
        roll = np.arctan2(matrix[..., 2, 1], matrix[..., 2, 2])
        yaw = np.arctan2(matrix[..., 1, 0], matrix[..., 0, 0])
        return np.stack([roll, pitch, yaw], axis=-1)
    quaternion = _quaternion(matrix)
    if pose == "quaternion":
        return quaternion
    if pose == "quaternion_xyzw":
        return quaternion[..., [1, 2, 3, 0]]
    sine = np.linalg.norm(quaternion[..., 1:], axis=-1, keepdims=True)
    angle = 2 * np.arctan2(sine, quaternion[..., :1])
    return quaternion[..., 1:] * np.where(sine < _SMALL, 2.0, angle / np.maximum(sine, _SMALL))


def _quaternion(matrix: Array) -> Array:
    """(w, x, y, z) by the largest of four formulas, which keeps all digits."""
    xx, yy, zz = matrix[..., 0, 0], matrix[..., 1, 1], matrix[..., 2, 2]
    squares = np.stack([1 + xx + yy + zz, 1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz], axis=-1)
    a, b, c = (matrix[..., i, j] - matrix[..., j, i] for i, j in ((2, 1), (0, 2), (1, 0)))
    d, e, f = (matrix[..., i, j] + matrix[..., j, i] for i, j in ((0, 1), (0, 2), (1, 2)))
    formulas = [
        [squares[..., 0], a, b, c],
        [a, squares[..., 1], d, e],
        [b, d, squares[..., 2], f],
        [c, e, f, squares[..., 3]],
    ]
    candidates = np.stack([np.stack(formula, axis=-1) for formula in formulas], axis=-2)
    best = squares.argmax(axis=-1)[..., None, None]
    quaternion = _unit(np.take_along_axis(candidates, best, axis=-2)[..., 0, :])
    return np.where(quaternion[..., :1] < 0, -quaternion, quaternion)


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), _SMALL))
