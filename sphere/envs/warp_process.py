"""A process that draws many environments at once with MuJoCo Warp: on a GPU or, slowly, on a CPU.

It runs in an interpreter of its own, because the renderer needs a newer MuJoCo than the physics, and so it imports
nothing of this package. Poses and pictures lie in memory that it shares with the learner (`sphere.envs.drawn`);
requests and answers are lines of JSON. The scene is compiled here from the same file as there, and refused if it has
other geoms.
"""

import json
import logging
import mmap
import os
import sys
from typing import Any

SAMPLES = 2
"""Rays of a pixel along each axis, averaged: without, edges and textures flicker between neighbouring pixels."""


DIMMED = 0.72
"""Lights as a share of the scene's: so much that no surface gets more than 1 of them together. OpenGL cuts off what is
above before it multiplies by a texture, a ray tracer afterwards."""


def geom_name(site: str) -> str:
    return f"site {site}"


def staged(mujoco: Any, path: str) -> Any:
    """The model in that file with a sphere in place of every site that can be seen, and without highlights: of flat
    surfaces OpenGL computes them at corners only, and a ray tracer everywhere."""
    spec = mujoco.MjSpec.from_file(path)
    for site in list(spec.sites):
        if site.rgba[3] > 0:
            size = [site.size[0], 0.0, 0.0]
            shown = {"size": size, "pos": site.pos, "rgba": site.rgba, "group": 0}
            untouched = {"contype": 0, "conaffinity": 0, "mass": 0.0}
            site.parent.add_geom(name=geom_name(site.name), type=mujoco.mjtGeom.mjGEOM_SPHERE, **shown, **untouched)
    model = spec.compile()
    model.light_specular[:] = 0
    model.vis.headlight.specular[:] = 0
    for light in (model.light_diffuse, model.vis.headlight.diffuse, model.vis.headlight.ambient):
        light[:] *= DIMMED
    return model


def smoothed(mujoco: Any, model: Any) -> Any:
    """With every texture averaged over a 64th of its side: there are no mipmaps, and a pixel covers about as much."""
    import numpy as np

    for i in range(model.ntex):
        if model.tex_type[i] == mujoco.mjtTexture.mjTEXTURE_SKYBOX:
            continue
        height, width, channels = model.tex_height[i], model.tex_width[i], model.tex_nchannel[i]
        place = slice(model.tex_adr[i], model.tex_adr[i] + height * width * channels)
        faces = model.tex_data[place].reshape(-1, min(width, height), width, channels).astype(np.float64)
        wide = max(1, width // 64)
        for axis in (1, 2):
            shifted = [np.roll(faces, -k, axis) for k in range(wide)]
            faces = sum(shifted) / wide
        model.tex_data[place] = faces.round().astype(np.uint8).reshape(-1)
    return model


def free_memory(device: Any) -> int:
    """Bytes."""
    if device.is_cuda:
        return device.free_memory
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_room(worlds: int, size: int, pose: int, free: int) -> None:
    """Refuse more worlds than the device holds: a pixel takes a packed colour and a sum of three, at least."""
    needed = worlds * (16 * size**2 + 4 * pose)
    if needed > free:
        raise ValueError(
            f"{worlds:,} worlds of {size} x {size} pixels take {needed / 2**30:,.1f} GiB or more, and "
            f"{free / 2**30:,.1f} are free; use fewer runs or environments, or a smaller image_size"
        )


def geom_names(model: Any) -> list[str]:
    return [model.geom(i).name for i in range(model.ngeom)]


def pose_size(model: Any) -> int:
    """Numbers of a pose: position and rotation of geoms and of the camera, position and direction of lights."""
    return 12 * model.ngeom + 12 + 6 * model.nlight


class Drawing:
    """`worlds` scenes of one model, and their pictures of `size` x `size` pixels."""

    def __init__(self, path: str, camera: str, size: int, worlds: int, geoms: list[str]) -> None:
        import mujoco
        import mujoco_warp
        import numpy as np
        import warp

        self.warp, self.mjw = warp, mujoco_warp
        model = smoothed(mujoco, staged(mujoco, path))
        check_room(worlds, size, pose_size(model), free_memory(warp.get_device()))
        if geom_names(model) != geoms:
            raise ValueError(f"this MuJoCo ({mujoco.__version__}) reads other geoms from {path} than the physics does")
        self.pose = pose_size(model)
        self.parts = np.cumsum([3 * model.ngeom, 9 * model.ngeom, 3, 9, 3 * model.nlight])
        self.camera, self.size, self.worlds = model.camera(camera).id, size, worlds
        self.model = mujoco_warp.put_model(model)
        self.data = mujoco_warp.make_data(model, nworld=worlds, nconmax=1, njmax=1)
        self.context = mujoco_warp.create_render_context(
            model,
            nworld=worlds,
            cam_res=(size, size),
            cam_active=[i == self.camera for i in range(model.ncam)],
            render_rgb=True,
            render_depth=False,
            use_shadows=False,
            render_skybox=bool((model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX).any()),
            samples_per_pixel=SAMPLES,
        )
        self.cameras = [self.data.cam_xpos.numpy(), self.data.cam_xmat.numpy()]
        data = self.data
        self.moved = (data.geom_xpos, data.geom_xmat, data.cam_xpos, data.cam_xmat, data.light_xpos, data.light_xdir)
        self.shapes = [array.numpy().shape for array in self.moved]  # asked for once: a GPU would copy all for it

    def draw(self, poses: Any, pictures: Any) -> None:
        """From poses float32 [world, pose] to pictures uint8 [world, size, size, 4] in the order blue, green, red."""
        import numpy as np

        worlds = self.worlds
        geom, turned, place, view, light, beam = np.split(poses, self.parts, axis=1)
        self.cameras[0][:, self.camera] = place
        self.cameras[1][:, self.camera] = view.reshape(worlds, 3, 3)
        values = (geom, turned, *self.cameras, light, beam)
        for array, shape, value in zip(self.moved, self.shapes, values, strict=True):
            array.assign(np.ascontiguousarray(value).reshape(shape))
        self.mjw.refit_bvh(self.model, self.data, self.context)
        self.mjw.render(self.model, self.data, self.context)
        packed = self.context.rgb_data.numpy().view(np.uint8)
        pictures[:] = packed.reshape(worlds, self.size, self.size, 4)


def serve(memory: int) -> None:
    """Answer requests until there are no more: {"load": ...} makes a `Drawing`, {"draw": true} draws."""
    import numpy as np
    import warp

    warp.config.log_level = logging.WARNING
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    drawing: Any = None
    poses: Any = None
    pictures: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "load" in asked:
                drawing = None
                drawing = Drawing(**asked["load"])
                worlds, size = drawing.worlds, drawing.size
                shared = mmap.mmap(memory, os.fstat(memory).st_size)
                poses = np.frombuffer(shared, np.float32, worlds * drawing.pose).reshape(worlds, -1)
                pictures = np.frombuffer(shared, np.uint8, worlds * size * size * 4, poses.nbytes)
                pictures = pictures.reshape(worlds, size, size, 4)
                answer = {"device": str(warp.get_device().name), "pose": drawing.pose}
            else:
                drawing.draw(poses, pictures)
                answer = {}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
