"""Scans of every format and orientation are read as other libraries do, viewed as axial, and written back exactly."""

from __future__ import annotations

import gzip
import itertools
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

from smg.errors import SmgError
from smg.sites.formats import Array
from smg.sites.volume import (
    Orientation,
    Volume,
    geometry_note,
    is_scan,
    mask_suffix,
    read_header,
    read_volume,
    same_grid,
    source_files,
    write_volume,
)
from tests.conftest import affine, scan

FORMATS = (".nii", ".nii.gz", ".mha", ".mhd", ".nrrd")


def rotation(degrees: float) -> np.ndarray:
    a, b = np.radians(degrees), np.radians(degrees / 2)
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    about_z = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
    return about_z @ about_x


def directions() -> list[np.ndarray]:
    """Return all 48 permutations and flips of the axes, and two oblique directions."""
    made = []
    for permutation in itertools.permutations(range(3)):
        for signs in itertools.product((1, -1), repeat=3):
            made.append(np.eye(3)[:, permutation] * signs)
    return [*made, rotation(20), rotation(-35)[:, [2, 0, 1]]]


def placed(direction: np.ndarray, spacing: tuple[float, ...] = (0.5, 0.7, 3.0)) -> np.ndarray:
    made = np.eye(4)
    made[:3, :3] = direction * np.array(spacing)
    made[:3, 3] = (10.0, -20.0, 30.0)
    return made


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("direction", [np.eye(3), np.diag([-1.0, 1, -1]), np.eye(3)[:, [2, 0, 1]], rotation(20)])
def test_what_is_written_is_read_and_simpleitk_agrees(tmp_path: Path, suffix: str, direction: np.ndarray) -> None:
    array = np.arange(5 * 7 * 9, dtype=np.int16).reshape(5, 7, 9)
    path = tmp_path / f"scan{suffix}"
    write_volume(path, Volume(array, placed(direction)))

    volume = read_volume(path)
    assert np.array_equal(volume.array, array)
    assert np.allclose(volume.affine, placed(direction), atol=1e-5)
    assert np.allclose(volume.spacing, (0.5, 0.7, 3.0), atol=1e-6)

    other = sitk.ReadImage(str(path))
    assert np.array_equal(sitk.GetArrayFromImage(other), array)
    assert np.allclose(other.GetOrigin(), volume.affine[:3, 3], atol=1e-5)
    assert np.allclose(np.reshape(other.GetDirection(), (3, 3)) * other.GetSpacing(), volume.affine[:3, :3], atol=1e-5)


@pytest.mark.parametrize("direction", directions())
def test_axial_is_feet_up_front_back_right_left_whatever_the_storage(direction: np.ndarray) -> None:
    shape = (4, 5, 6)
    volume = Volume(np.zeros(shape), placed(direction))
    k, j, i = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij")
    world = np.einsum("wa,a...->w...", volume.affine[:3, :3], np.stack([i, j, k]))  # left, back, head
    head, back, left = (volume.orientation.axial(world[w]) for w in (2, 1, 0))
    assert (np.diff(head, axis=0) > 0).all()
    assert (np.diff(back, axis=1) > 0).all()
    assert (np.diff(left, axis=2) > 0).all()


@pytest.mark.parametrize("direction", directions())
def test_stored_undoes_axial(direction: np.ndarray) -> None:
    array = np.random.default_rng(0).integers(0, 9, (4, 5, 6))
    orientation = Orientation.of(placed(direction))
    assert np.array_equal(orientation.stored(orientation.axial(array)), array)


def test_axial_spacing_follows_the_axes() -> None:
    volume = Volume(np.zeros((4, 5, 6)), placed(np.eye(3)[:, [2, 0, 1]], (3.0, 0.5, 0.7)))
    assert np.allclose(volume.axial_spacing, (3.0, 0.7, 0.5))


def test_a_sheared_scan_is_read_and_its_masks_written_in_every_format(tmp_path: Path) -> None:
    sheared = np.diag([0.5, 0.6, 3.0, 1.0])
    sheared[0, 1] = 0.2
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    nib.Nifti1Image(array, sheared).to_filename(tmp_path / "s.nii.gz")
    with pytest.raises(RuntimeError):  # which is why nibabel is used
        sitk.ReadImage(str(tmp_path / "s.nii.gz"))
    volume = read_volume(tmp_path / "s.nii.gz")
    assert np.array_equal(volume.array, array.transpose())
    for suffix in FORMATS:
        write_volume(tmp_path / f"again{suffix}", volume)
        again = read_volume(tmp_path / f"again{suffix}")
        assert np.array_equal(again.array, volume.array)
        assert np.allclose(again.affine, volume.affine, atol=1e-5)
    assert volume.voxel == pytest.approx(0.5 * 0.6 * 3.0)  # a shear keeps the volume of a voxel
    assert np.prod(volume.spacing) > 1.05 * volume.voxel


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<u1", "<f4", ">f8"])
def test_both_niftis_and_both_byte_orders(tmp_path: Path, kind: type, dtype: str) -> None:
    array = np.arange(60).reshape(3, 4, 5).astype(dtype)
    image = kind(array, np.diag([-1, -1, 2, 1]), header=kind.header_class(endianness=dtype[0]))
    image.to_filename(tmp_path / "s.nii.gz")
    volume = read_volume(tmp_path / "s.nii.gz")
    assert np.array_equal(volume.array, array.transpose())
    assert np.allclose(volume.affine, np.diag([1, 1, 2, 1]))


def test_scaled_voxels_units_and_missing_orientation_as_simpleitk_has_them(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    image = nib.Nifti1Image(array, np.diag([0.5, 0.6, 3, 1]))
    image.header.set_slope_inter(2.0, 1.0)
    image.header.set_xyzt_units("meter")
    image.to_filename(tmp_path / "s.nii")
    raw = bytearray((tmp_path / "s.nii").read_bytes())
    raw[252:256] = bytes(4)  # qform_code and sform_code: no orientation
    (tmp_path / "plain.nii").write_bytes(raw)
    for name in ("s.nii", "plain.nii"):
        ours, theirs = read_volume(tmp_path / name), sitk.ReadImage(str(tmp_path / name))
        assert np.array_equal(ours.array, sitk.GetArrayFromImage(theirs))
        assert np.allclose(ours.spacing, theirs.GetSpacing())
        assert np.allclose(ours.affine[:3, :3], np.reshape(theirs.GetDirection(), (3, 3)) * theirs.GetSpacing())


def test_a_fourth_dimension_of_one_is_dropped_and_any_other_refused(tmp_path: Path) -> None:
    array = np.zeros((3, 4, 5, 1), np.int16)
    nib.Nifti1Image(array, np.eye(4)).to_filename(tmp_path / "one.nii.gz")
    assert read_volume(tmp_path / "one.nii.gz").array.shape == (5, 4, 3)
    nib.Nifti1Image(np.zeros((3, 4, 5, 2), np.int16), np.eye(4)).to_filename(tmp_path / "four.nii.gz")
    with pytest.raises(SmgError, match=r"four.nii.gz: has four dimensions"):
        read_volume(tmp_path / "four.nii.gz")


def test_no_header_field_of_a_source_is_copied(tmp_path: Path) -> None:
    secret = b"DOE^JOHN 1950-01-01"
    image = nib.Nifti1Image(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.eye(4))
    image.header["descrip"] = secret
    image.header["aux_file"] = secret
    image.header["db_name"] = secret[:18]
    image.header["intent_name"] = secret[:15]
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", secret))
    image.to_filename(tmp_path / "s.nii.gz")
    assert secret[:8] in gzip.decompress((tmp_path / "s.nii.gz").read_bytes())
    for suffix in (".nii", ".nii.gz", ".mha", ".mhd", ".nrrd"):
        write_volume(tmp_path / f"out{suffix}", read_volume(tmp_path / "s.nii.gz"))
        raw = (tmp_path / f"out{suffix}").read_bytes()
        assert secret[:8] not in (gzip.decompress(raw) if suffix == ".nii.gz" else raw)
    header = nib.load(tmp_path / "out.nii.gz").header
    assert not header.extensions
    assert all(bytes(header[field]).strip(b"\0") == b"" for field in ("descrip", "aux_file", "db_name", "intent_name"))


def test_a_scan_over_the_limit_costs_nothing(tmp_path: Path) -> None:
    """The header announces 2e9 voxels, and the bytes after it are never read."""
    header = nib.Nifti1Header()
    header.set_data_shape((1024, 1024, 2048))
    header.set_data_dtype(np.int16)
    header["magic"] = b"n+1"
    (tmp_path / "bomb.nii.gz").write_bytes(gzip.compress(header.binaryblock + bytes(4)) + b"never read")
    with pytest.raises(SmgError, match=r"bomb.nii.gz: .*4.0 GiB.* 2.0 GiB"):
        read_volume(tmp_path / "bomb.nii.gz")


def test_no_more_is_decompressed_than_the_header_announces(tmp_path: Path) -> None:
    image, _ = scan()
    write_volume(tmp_path / "s.nii", image)
    (tmp_path / "s.nii.gz").write_bytes(gzip.compress((tmp_path / "s.nii").read_bytes() + bytes(50_000_000)))
    assert np.array_equal(read_volume(tmp_path / "s.nii.gz").array, image.array)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_a_file_cut_short_is_refused_in_every_format(tmp_path: Path, suffix: str, share: float, capfd) -> None:
    image, _ = scan()
    path = tmp_path / f"s{suffix}"
    write_volume(path, image)
    data = next(tmp_path.glob("*raw"), path)
    whole = data.read_bytes()
    data.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(SmgError) as error:
        read_volume(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""  # ITK's libraries print nothing


def test_a_flipped_bit_in_a_compressed_file_is_noticed(tmp_path: Path) -> None:
    image, _ = scan()
    write_volume(tmp_path / "s.nii.gz", image)
    raw = bytearray((tmp_path / "s.nii.gz").read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    (tmp_path / "s.nii.gz").write_bytes(raw)
    with pytest.raises(SmgError, match=r"corrupt|cut short"):
        read_volume(tmp_path / "s.nii.gz")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.nii.gz", b"hello" * 200, "not a NIfTI file"),
        ("b.nii", b"", "too short for a NIfTI header"),
        ("c.mha", b"hello" * 200, "not a scan that can be read"),
        ("d.txt", b"hello", "not a scan: its name ends in none of"),
    ],
)
def test_a_file_that_is_not_a_scan_is_refused(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SmgError, match=sentence):
        read_volume(tmp_path / name)
    with pytest.raises(SmgError, match="no such file"):
        read_volume(tmp_path / f"missing-{name}")


def test_an_unusable_geometry_is_refused(tmp_path: Path) -> None:
    header = nib.Nifti1Image(np.zeros((3, 4, 5), np.int16), np.eye(4))
    header.to_filename(tmp_path / "s.nii")
    raw = bytearray((tmp_path / "s.nii").read_bytes())
    raw[280:296] = bytes(16)  # the sform's first row
    (tmp_path / "s.nii").write_bytes(raw)
    with pytest.raises(SmgError, match="geometry is unusable"):
        read_volume(tmp_path / "s.nii")


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, _ = scan()
    monkeypatch.setattr(nib.Nifti1Image, "to_filename", lambda self, path: (Path(path).write_bytes(b"half"), 1 / 0))
    with pytest.raises(SmgError, match=r"s\.nii\.gz: cannot be read or written \(division by zero\)"):
        write_volume(tmp_path / "s.nii.gz", image)
    assert list(tmp_path.iterdir()) == []


# --- DICOM ------------------------------------------------------------------------------------------------------------


def write_dicom(
    folder: Path, array: np.ndarray, direction: np.ndarray, skip: int | None = None, series: str = ""
) -> None:
    """Write a series as a scanner does: slices in files whose names do not give their order."""
    folder.mkdir(exist_ok=True)
    series, frame = series or generate_uid(), generate_uid()
    normal = np.cross(direction[:, 0], direction[:, 1])
    for number, pixels in enumerate(array):
        if number == skip:
            continue
        data = pydicom.Dataset()
        data.file_meta = pydicom.dataset.FileMetaDataset()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.file_meta.MediaStorageSOPClassUID = MRImageStorage
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
        data.SOPClassUID, data.Modality, data.PatientName = MRImageStorage, "MR", "DOE^JOHN"
        data.StudyInstanceUID, data.SeriesInstanceUID, data.FrameOfReferenceUID = frame, series, frame
        data.ImageOrientationPatient = [*direction[:, 0], *direction[:, 1]]
        data.ImagePositionPatient = list(np.array([5.0, 6, 7]) + normal * 3.0 * number)
        data.PixelSpacing, data.SliceThickness, data.InstanceNumber = [0.7, 0.5], 3.0, number + 1
        data.Rows, data.Columns = pixels.shape
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 0
        data.PixelData = pixels.astype(np.uint16).tobytes()
        data.save_as(folder / f"{(number * 7) % 11:03d}-{series[-4:]}.dcm", enforce_file_format=True)


@pytest.mark.parametrize("direction", [np.eye(3), rotation(15), np.eye(3)[:, [1, 2, 0]]])
def test_a_dicom_series_is_a_scan(tmp_path: Path, direction: np.ndarray) -> None:
    array = np.random.default_rng(0).integers(0, 999, (6, 8, 10))
    write_dicom(tmp_path / "series", array, direction)
    assert is_scan(tmp_path / "series")
    volume = read_volume(tmp_path / "series")
    assert np.array_equal(volume.array, array)
    assert np.allclose(volume.spacing, (0.5, 0.7, 3.0))
    assert np.allclose(volume.affine[:3, 0], direction[:, 0] * 0.5, atol=1e-5)
    assert mask_suffix(tmp_path / "series") == ".nii.gz"
    write_volume(tmp_path / "mask.nii.gz", Volume((array > 500).astype(np.uint8), volume.affine))
    assert same_grid(volume, read_volume(tmp_path / "mask.nii.gz")) is None
    assert b"DOE" not in gzip.decompress((tmp_path / "mask.nii.gz").read_bytes())


def test_the_difference_of_two_grids_is_described(tmp_path: Path) -> None:
    image, mask = scan()
    assert same_grid(image, mask) is None
    assert same_grid(image, Volume(mask.array, mask.affine + 1e-4)) is None
    assert same_grid(image, Volume(mask.array[1:], mask.affine)) == "sizes differ: 24 x 20 x 6 and 24 x 20 x 5"
    moved = affine()
    moved[2, 3] += 6.0
    assert same_grid(image, Volume(mask.array, moved)) == "same size, but positions differ by up to 6.0 mm"


@pytest.mark.parametrize(
    ("field", "value", "reads"),
    [
        ("xyzt_units", 5, True),  # an unknown unit counts as millimetres, as in most programs
        ("vox_offset", 0, True),  # the voxels are after the header all the same
        ("quatern_b", 9.0, False),
        ("dim", [3, -4, 5, 6, 1, 1, 1, 1], False),
        ("scl_inter", np.nan, False),
    ],
)
def test_invalid_headers_are_one_line(tmp_path: Path, field: str, value: Any, reads: bool) -> None:
    image, _ = scan()
    write_volume(tmp_path / "s.nii", image)
    data = bytearray((tmp_path / "s.nii").read_bytes())
    header = nib.Nifti1Header(bytes(data[:348]), check=False)
    header["sform_code"], header["scl_slope"] = 0, 2.0 if field == "scl_inter" else 1.0
    header[field] = value
    data[:348] = header.binaryblock
    (tmp_path / "s.nii").write_bytes(data)
    if reads:
        assert np.array_equal(read_volume(tmp_path / "s.nii").array, image.array)
        return
    with pytest.raises(SmgError, match=r"s\.nii: .*NIfTI header"):
        read_volume(tmp_path / "s.nii")


def test_gzip_of_many_members_is_one_file(tmp_path: Path) -> None:
    image, _ = scan()
    write_volume(tmp_path / "s.nii", image)
    whole = (tmp_path / "s.nii").read_bytes()
    blocks = [gzip.compress(whole[start : start + 100]) for start in range(0, len(whole), 100)]
    (tmp_path / "s.nii.gz").write_bytes(b"".join(blocks))
    assert np.array_equal(read_volume(tmp_path / "s.nii.gz").array, image.array)
    (tmp_path / "s.nii.gz").write_bytes(b"".join(blocks[:-1]))
    with pytest.raises(SmgError, match="cut short"):
        read_volume(tmp_path / "s.nii.gz")


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (np.diag([1.0, 1.0, 1.0, 1.0]), ""),
        (np.array([[1, 0, 0, 40], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]), "40.0 mm apart"),
        (np.diag([-1.0, 1.0, 1.0, 1.0]), "different directions"),
        (np.diag([1.0, 1.0, 1.2, 1.0]), "mm apart"),
    ],
)
def test_a_geometry_that_is_given_twice_and_differently_is_noted(tmp_path: Path, change: Array, fact: str) -> None:
    image, _ = scan()
    made = nib.Nifti1Image(image.array.transpose(), None)
    made.set_sform(np.diag([0.6, 0.5, 3.0, 1.0]), code=1)
    made.set_qform(change @ np.diag([0.6, 0.5, 3.0, 1.0]), code=1)
    nib.save(made, tmp_path / "s.nii.gz")
    assert fact in geometry_note(tmp_path / "s.nii.gz")
    assert bool(fact) == bool(geometry_note(tmp_path / "s.nii.gz"))


def test_a_spacing_that_is_given_twice_and_differently_is_noted(tmp_path: Path) -> None:
    image, _ = scan()
    made = nib.Nifti1Image(image.array.transpose(), None)
    made.set_sform(np.diag([0.6, 0.5, 3.0, 1.0]), code=1)
    made.header["qform_code"], made.header["pixdim"][1:4] = 0, (1.0, 1.0, 1.0)
    nib.save(made, tmp_path / "s.nii.gz")
    assert "0.6 x 0.5 x 3 mm and its pixdim of 1 x 1 x 1 mm" in geometry_note(tmp_path / "s.nii.gz")


def test_a_mask_has_the_sform_and_qform_of_its_scan(tmp_path: Path) -> None:
    """Programs differ in which of the two they read."""
    image, mask = scan()
    made = nib.Nifti1Image(image.array.transpose(), None)
    made.set_qform(np.diag([0.6, 0.5, 3.0, 1.0]), code=1)
    aligned = np.diag([0.6, 0.5, 3.0, 1.0])
    aligned[:3, 3] = (10.0, 0.0, 0.0)
    made.set_sform(aligned, code=2)
    made.header["descrip"] = b"a patient's name"
    nib.save(made, tmp_path / "s.nii.gz")
    seen = read_volume(tmp_path / "s.nii.gz")
    write_volume(tmp_path / "m.nii.gz", Volume(mask.array, seen.affine), like=tmp_path / "s.nii.gz")
    written = nib.load(tmp_path / "m.nii.gz").header
    assert np.allclose(written.get_sform(), aligned)
    assert np.allclose(written.get_qform(), np.diag([0.6, 0.5, 3.0, 1.0]))
    assert (int(written["sform_code"]), int(written["qform_code"])) == (2, 1)
    assert bytes(written["descrip"]).strip(b"\0") == b""
    scan_, mask_ = (sitk.ReadImage(str(tmp_path / name)) for name in ("s.nii.gz", "m.nii.gz"))
    assert scan_.GetOrigin() == pytest.approx(mask_.GetOrigin())


def test_every_file_behind_a_metaimage_counts(tmp_path: Path) -> None:
    """A cache that misses one of them would keep the old scan."""
    image, _ = scan()
    write_volume(tmp_path / "Größe.mhd", image)
    assert {file.name for file in source_files(tmp_path / "Größe.mhd")} == {"Größe.mhd", "Größe.zraw"}
    head = "ObjectType = Image\nNDims = 3\nDimSize = 4 4 2\nElementType = MET_UCHAR\nElementDataFile = "
    for number in (1, 2):
        (tmp_path / f"s{number:03d}.raw").write_bytes(bytes([number]) * 16)
    (tmp_path / "list.mhd").write_text(f"{head}LIST\ns001.raw\ns002.raw\n")
    (tmp_path / "pattern.mhd").write_text(f"{head}s%03d.raw 1 2 1\n")
    for name in ("list.mhd", "pattern.mhd"):
        assert [f.name for f in source_files(tmp_path / name)] == [name, "s001.raw", "s002.raw"]
        assert read_volume(tmp_path / name).array[:, 0, 0].tolist() == [1, 2]


@pytest.mark.parametrize("head", ["\n", "Comment: x = y\n"])
@pytest.mark.parametrize("kind", ["MET_SHORT", "MET_FLOAT"])
@pytest.mark.parametrize("data", ["LOCAL", "listing.raw", "ascii"])
def test_metaimages_that_others_write(tmp_path: Path, head: str, kind: str, data: str) -> None:
    array = np.arange(32, dtype=np.int16 if kind == "MET_SHORT" else np.float32).reshape(2, 4, 4)
    text = f"{head}ObjectType = Image\r\nNDims: 3\nDimSize = 4 4 2\nElementType = {kind}\n"
    text += "BinaryData = False\n" if data == "ascii" else ""
    bytes_ = (" ".join(map(str, array.ravel())) + "\n").encode() if data == "ascii" else array.tobytes()
    path = tmp_path / "s.mhd"
    path.write_bytes((text + f"ElementDataFile = {'LOCAL' if data == 'ascii' else data}\n").encode())
    if data == "listing.raw":
        (tmp_path / data).write_bytes(bytes_)
    else:
        path.write_bytes(path.read_bytes() + bytes_)
    assert np.array_equal(read_volume(path).array, array)


def test_a_metaimage_that_does_not_decompress_is_refused(tmp_path: Path) -> None:
    """ITK would return uninitialised memory."""
    image, _ = scan()
    write_volume(tmp_path / "s.mha", image)
    whole = bytearray((tmp_path / "s.mha").read_bytes())
    assert np.array_equal(read_volume(tmp_path / "s.mha").array, image.array)
    whole[-40] ^= 0xFF
    (tmp_path / "s.mha").write_bytes(whole)
    with pytest.raises(SmgError, match=r"s\.mha: .*corrupt"):
        read_volume(tmp_path / "s.mha")


HEAD = "ObjectType = Image\nNDims = 3\nDimSize = 4 4 3\nElementType = MET_UCHAR\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "ElementDataFile = LIST\na.raw\nb.raw\n", "cut short or corrupt"),
        (HEAD + "ElementDataFile = LIST\na.raw\nb.raw\nc.raw\n", "its voxels are in c.raw, which does not exist"),
        (HEAD + "ElementDataFile = LIST\na.raw\nb.raw\nshort.raw\n", "cut short or corrupt"),
        (HEAD + "ElementDataFile = gone.raw\n", "its voxels are in gone.raw, which does not exist"),
        (HEAD + "ElementDataFile = s%d.raw 1 6 0\n", "its voxels are in s1.raw, which does not exist"),
        (HEAD + "HeaderSize = 40\nElementDataFile = whole.raw\n", "cut short or corrupt"),
        (HEAD + "HeaderSize = many\nElementDataFile = whole.raw\n", "not a scan that can be read"),
        (HEAD + "BinaryData = False\nElementDataFile = LOCAL\n1 2 3\n", "cut short or corrupt"),
        (HEAD + "CompressedData = True\nElementDataFile = LIST\na.raw\nb.raw\na.raw\n", "compressed in several pieces"),
        (HEAD.replace("4 4 3", "a b c") + "ElementDataFile = whole.raw\n", "not a scan that can be read"),
        (HEAD.replace("4 4 3", "") + "ElementDataFile = s%d.raw\n", "not a scan that can be read"),
        (HEAD.replace("MET_UCHAR", "") + "ElementDataFile = whole.raw\n", "not a scan that can be read"),
        (HEAD.replace("MET_UCHAR", "MET_ODD") + "ElementDataFile = whole.raw\n", "not a scan that can be read"),
        (HEAD.replace("NDims = 3", "NDims = x") + "ElementDataFile = whole.raw\n", "not a scan that can be read"),
    ],
)
def test_a_metaimage_without_all_its_voxels_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    for name, length in (("a.raw", 16), ("b.raw", 16), ("short.raw", 15), ("whole.raw", 48)):
        (tmp_path / name).write_bytes(b"\5" * length)
    path = tmp_path / "s.mhd"
    path.write_text(text)
    source_files(path)
    with pytest.raises(SmgError, match=rf"s\.mhd: .*{sentence}"):
        read_volume(path)
    assert capfd.readouterr() == ("", "")


def test_a_mask_of_a_scan_without_orientation_has_none_either(tmp_path: Path) -> None:
    image, mask = scan()
    made = nib.Nifti1Image(image.array.transpose(), None)
    made.header["pixdim"][1:4] = (0.6, 0.5, 3.0)
    nib.save(made, tmp_path / "s.nii.gz")
    seen = read_volume(tmp_path / "s.nii.gz")
    write_volume(tmp_path / "m.nii.gz", Volume(mask.array, seen.affine), like=tmp_path / "s.nii.gz")
    assert np.allclose(nib.load(tmp_path / "m.nii.gz").affine, nib.load(tmp_path / "s.nii.gz").affine)
    assert np.allclose(read_volume(tmp_path / "m.nii.gz").affine, seen.affine)
    assert np.array_equal(read_volume(tmp_path / "m.nii.gz").array, mask.array)


def test_multi_frame_dicom_is_refused(tmp_path: Path) -> None:
    """An enhanced object says where its frames lie; an older one does not."""
    write_dicom(tmp_path / "one", np.ones((1, 8, 10), int), np.eye(3))
    (file,) = (tmp_path / "one").iterdir()
    data = pydicom.dcmread(file)
    data.NumberOfFrames = 4
    data.PixelData = data.PixelData * 4
    data.save_as(file)
    with pytest.raises(SmgError, match="many slices in one file, without the positions"):
        read_header(tmp_path / "one")


def test_reading_prints_nothing_on_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_volume(tmp_path / "s.mha", scan(shape=(40, 200, 200))[0])
    lines = 200
    reading = threading.Thread(target=lambda: [read_volume(tmp_path / "s.mha") for _ in range(10)])
    reading.start()
    for number in range(lines):
        print(number, file=sys.stderr, flush=True)
        time.sleep(0.001)
    reading.join()
    assert len(capfd.readouterr().err.splitlines()) == lines


@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd", ".mha"])
def test_a_file_with_a_wrong_bit_is_refused_or_read_as_it_was(tmp_path: Path, suffix: str) -> None:
    """Also where damaged bytes decompress to more than the header announces."""
    z, y, x = np.mgrid[:6, :48, :48]
    noise = np.random.default_rng(0).normal(0, 20, x.shape)
    array = (500 + 300 * np.sin(x / 9) * np.cos(y / 7) + 9 * z + noise).astype(np.int16)
    path = tmp_path / f"scan{suffix}"
    write_volume(path, Volume(array, np.eye(4)))
    whole, refused = path.read_bytes(), 0
    behind_the_header = 100 if suffix == ".nii.gz" else whole.index(b"\n\n") if suffix == ".nrrd" else 400
    for place in np.linspace(behind_the_header + 40, len(whole) - 9, 150).astype(int):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            assert np.array_equal(read_volume(path).array, array), f"byte {place} of {len(whole)}"
        except SmgError:
            refused += 1
    assert refused > 140


def test_a_gzipped_file_of_more_than_its_voxels_or_of_many_members_is_read(tmp_path: Path) -> None:
    image, _ = scan()
    write_volume(tmp_path / "plain.nii", image)
    plain = (tmp_path / "plain.nii").read_bytes()
    half = len(plain) // 2
    for packed in (
        gzip.compress(plain + bytes(5_000_000)),
        gzip.compress(plain[:half]) + gzip.compress(plain[half:]),
        gzip.compress(plain) + b"more",
    ):
        (tmp_path / "s.nii.gz").write_bytes(packed)
        assert np.array_equal(read_volume(tmp_path / "s.nii.gz").array, image.array)


@pytest.mark.parametrize("sign", [0.0, 1.0, -1.0, 3.0])
def test_an_old_qform_without_its_sign_is_read_as_others_read_it(tmp_path: Path, sign: float) -> None:
    image = nib.Nifti1Image(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.diag([2.0, 3.0, 4.0, 1.0]))
    image.set_sform(None, code=0)
    image.set_qform(np.diag([2.0, 3.0, 4.0, 1.0]), code=1)
    image.to_filename(tmp_path / "s.nii")
    raw = bytearray((tmp_path / "s.nii").read_bytes())
    raw[76:80] = np.float32(sign).tobytes()  # pixdim[0]
    (tmp_path / "s.nii").write_bytes(raw)
    theirs = sitk.ReadImage(str(tmp_path / "s.nii"))
    ours = read_volume(tmp_path / "s.nii")
    expected = np.array(theirs.GetDirection()).reshape(3, 3) * theirs.GetSpacing()
    assert np.allclose(ours.affine[:3, :3], expected, atol=1e-5)


NRRD = """NRRD0005
type: short
dimension: 3
space: left-posterior-superior
sizes: 5 4 6
space directions: (1,0,0) (0,1,0) (0,0,2)
space origin: (0,0,0)
encoding: raw
endian: little
"""
SLICES = [f"vox{number:02d}.raw" for number in range(1, 7)]


@pytest.mark.parametrize(
    ("named", "files"),
    [("voxels.raw", ["voxels.raw"]), ("\n".join(["LIST 2", *SLICES]), SLICES), ("vox%02d.raw 1 6 1 2", SLICES)],
)
def test_the_files_an_nrrd_names_are_part_of_the_scan(tmp_path: Path, named: str, files: list[str]) -> None:
    array = np.arange(6 * 4 * 5, dtype="<i2").reshape(6, 4, 5)
    (tmp_path / "s.nrrd").write_text(f"{NRRD}data file: {named}\n")
    for file, part in zip(files, np.array_split(array, len(files)), strict=True):
        (tmp_path / file).write_bytes(part.tobytes())
    assert np.array_equal(read_volume(tmp_path / "s.nrrd").array, array)
    assert source_files(tmp_path / "s.nrrd") == [tmp_path / "s.nrrd", *(tmp_path / file for file in files)]
    (tmp_path / files[0]).unlink()
    with pytest.raises(SmgError, match=rf"its voxels are in {files[0]}, which does not exist"):
        read_volume(tmp_path / "s.nrrd")


@pytest.mark.parametrize("how", ["one member", "two members", "more than the voxels", "long header", "byte skip"])
def test_gzipped_nrrds_are_read_as_itk_reads_them(tmp_path: Path, how: str) -> None:
    array = np.arange(6 * 4 * 5, dtype="<i2").reshape(6, 4, 5)
    raw, head = array.tobytes(), NRRD.replace("encoding: raw", "encoding: gzip")
    packed = gzip.compress(raw)
    if how == "two members":
        packed = gzip.compress(raw[:100]) + gzip.compress(raw[100:])
    elif how == "more than the voxels":
        packed = gzip.compress(raw + bytes(100_000))
    elif how == "long header":
        head += "".join(f"note{n}:={'x' * 1000}\n" for n in range(80)) + "# a comment: of no meaning\n"
    elif how == "byte skip":
        head, packed = head + "byteskip: 16\n", gzip.compress(bytes(16) + raw)
    (tmp_path / "s.nrrd").write_bytes(head.encode() + b"\n" + packed)
    assert np.array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "s.nrrd"))), array)
    assert np.array_equal(read_volume(tmp_path / "s.nrrd").array, array)
