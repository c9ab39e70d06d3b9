import ml_dtypes
import numpy as np
import pytest
from isthmus.errors import ClosedError, InputError, UnsupportedError
from isthmus.types import Capability, DType, TensorSpec

VECTOR = TensorSpec("x", DType.FLOAT32, (2, 2))


def test_bytes_go_to_their_offset(allocate):
    buffer = allocate(8)
    buffer.write(bytes(8))
    buffer.write(b"abc", offset=5)
    buffer[1:3].write(b"xy")
    assert buffer.read() == b"\0xy\0\0abc"
    assert buffer.read(2, offset=1) == b"xy"
    assert buffer[4:].size == 4
    assert buffer[4:][1:3].offset == 5


@pytest.mark.parametrize(
    "use",
    [
        lambda b: b.write(bytes(9)),
        lambda b: b.write(bytes(4), offset=5),
        lambda b: b.write(b"", offset=9),
        lambda b: b.write(b"", offset=-1),
        lambda b: b.read(9),
        lambda b: b.read(-1),
        lambda b: b.read(offset=9),
        lambda b: b.read_into(bytearray(9)),
        lambda b: b[-1:],
        lambda b: b[5:3],
        lambda b: b[::2],
        lambda b: b[:9],
        lambda b: b[3],
        lambda b: b.view(VECTOR),
        lambda b: b[2:4].write(bytes(3)),
    ],
)
def test_nothing_leaves_the_buffer(allocate, driver, use):
    buffer = allocate(8)
    with pytest.raises(InputError):
        use(buffer)
    assert driver.names() == ["allocate"]


@pytest.mark.parametrize("data", ["text", [1, 2], 7, None, np.array([object()]), np.arange(8.0).reshape(2, 4).T])
def test_only_contiguous_plain_bytes_are_written(allocate, data):
    with pytest.raises(InputError):
        allocate(64).write(data)


@pytest.mark.parametrize("dtype", ["float16", "int64", ">f4", ml_dtypes.bfloat16, "bool", "complex64", "datetime64[s]"])
def test_arrays_of_any_plain_dtype_travel_as_their_bytes(allocate, dtype):
    data = np.arange(4).astype(dtype)
    buffer = allocate(data.nbytes)
    buffer.write(data)
    back = np.zeros_like(data)
    buffer.read_into(back)
    assert back.tobytes() == data.tobytes()


def test_scalars_and_odd_layouts_travel_too(allocate):
    buffer = allocate(64)
    buffer.write(np.float32(1.5))
    buffer.write(np.array(2.5, np.float32), offset=4)
    buffer.write(np.zeros((0, 3)))
    buffer.write(memoryview(b"abcd").cast("B", (2, 2)), offset=8)
    assert np.frombuffer(buffer.read(8), np.float32).tolist() == [1.5, 2.5]
    assert buffer.read(4, offset=8) == b"abcd"


def test_reading_into_read_only_memory_is_refused(allocate):
    with pytest.raises(InputError, match="read-only"):
        allocate(8).read_into(bytes(8))


def test_copies_stay_on_the_device(allocate, driver):
    one, two = allocate(8), allocate(8)
    one.write(b"12345678")
    two.view().copy_from(one)
    two[0:4].copy_from(one[4:8])
    one[0:2].copy_from(one[6:8])
    assert two.read() == b"56785678"
    assert one.read() == b"78345678"
    assert driver.names().count("copy") == 3


def test_bad_copies_are_refused(allocate, driver, open_fake):
    one, two = allocate(8), allocate(4)
    other, _ = open_fake()
    foreign = allocate(4, on=other)
    for source in (one, one[0:3], two, two[0:4], foreign):
        with pytest.raises(InputError):
            two.view().copy_from(source)
    one[4:4].copy_from(two[0:0])
    two.close()
    with pytest.raises(ClosedError):
        one[:4].copy_from(two)
    with pytest.raises(ClosedError):
        two.view().copy_from(one[:4])
    assert "copy" not in driver.names()


def test_closed_memory_is_dead(allocate, driver):
    buffer = allocate(16)
    view = buffer[2:]
    buffer.close()
    buffer.close()
    for use in (buffer.read, lambda: buffer.write(b""), lambda: view.write(b"x"), lambda: view.array()):
        with pytest.raises(ClosedError):
            use()
    assert driver.names() == ["allocate", "free"]


def test_host_views_are_the_memory_itself(allocate):
    buffer = allocate(20)
    buffer.write(bytes(20))
    array = buffer.view(VECTOR, offset=4).array()
    array[1, 0] = 7
    assert np.frombuffer(buffer.read(offset=4), np.float32).tolist() == [0, 0, 7, 0]
    assert buffer.view(offset=1).array().dtype == np.uint8
    assert buffer.view().array(VECTOR).shape == (2, 2)
    assert buffer.view(offset=1).array(VECTOR).shape == (2, 2)
    with pytest.raises(InputError):
        buffer[:15].array(VECTOR)
    buffer.close()


def test_dtypes_that_numpy_lacks_are_viewed_as_bytes(allocate):
    buffer = allocate(8)
    assert buffer.view(TensorSpec("x", DType.BFLOAT16, (4,))).array().shape == (8,)
    assert buffer.view(TensorSpec("x", DType.INT4, (3,))).array().shape == (2,)


def test_host_views_need_the_ability(open_fake):
    device, driver = open_fake(without={Capability.HOST_VISIBLE})
    with device.allocate(4) as buffer:
        with pytest.raises(UnsupportedError):
            buffer.view().array()
        assert driver.names() == ["allocate"]
