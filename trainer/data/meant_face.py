"""The face that a photo is meant to show, if it shows several.

A photo in a person's folder often shows bystanders, too. The limit was chosen on half of the people of LFW, whose photos have
the named person in the middle: of 5,726 photos, 981 show several faces and 32 (0.6 %) leave doubt. In none of the 646 whose
person has other photos does another face fit these better than the leading one, by the embeddings of SFace.
"""

from collections.abc import Sequence

import numpy as np

from edge.vision.detect import Face

LEAD = 1.5  # the chosen face has this many times the weight of every other face


def meant_face(faces: Sequence[Face], shape: tuple[int, int]) -> Face | None:
    """Return the face that clearly leads by size and nearness to the middle of a photo (height, width), or None.

    The weight of a face is its size times 1 - distance: the root of the area of its box, and the distance of the middle of its
    box from the middle of the photo, in longer sides of the photo.
    """
    middle, longer = np.array(shape[::-1]) / 2, max(shape)

    def weight(face: Face) -> float:
        centre = np.array(face.box_xyxy).reshape(2, 2).mean(axis=0)
        return float(np.sqrt(face.area) * (1 - np.hypot(*(centre - middle)) / longer))

    ordered = sorted(faces, key=weight, reverse=True)
    if not ordered or (len(ordered) > 1 and weight(ordered[0]) < LEAD * weight(ordered[1])):
        return None
    return ordered[0]
