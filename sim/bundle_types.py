"""What a bundle of arrays is to compiled code: the address of its table, and an attribute for each array."""

import hashlib
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, intrinsic, lower_getattr_generic, models, register_model, unbox

from sim.bundle import Bundle, declared


class BundleType(nb.types.Type):
    """Numba's type of a bundle. Its name is short: it becomes part of the name of every function that takes one.

    Args:
        bundle: the class.
        dtypes: of those of its arrays that it declares without one. All types of one class have the same layout: where a
            function for one is expected, the address of one for another will do, as long as it gets a bundle of its own type.
    """

    def __init__(self, bundle: type[Bundle], **dtypes: Any) -> None:
        arrays = {name: (np.dtype(dtypes.get(name, dtype)), ndim) for name, (dtype, ndim) in declared(bundle).items()}
        digest = hashlib.sha256(repr([arrays[name] for name in dtypes]).encode()).hexdigest()[:12] if dtypes else ""
        super().__init__(name=bundle.__name__ + digest)
        self.arrays = {name: nb.types.Array(nb.from_dtype(dtype), ndim, "C") for name, (dtype, ndim) in arrays.items()}
        if not dtypes:
            bundle._numba_type_ = self  # type: ignore[attr-defined]


@register_model(BundleType)
class _PlacesModel(models.StructModel):
    """Of each array only where it is and how long its axes are; the rest follows from its type."""

    def __init__(self, manager: Any, bundle_type: BundleType) -> None:
        members: list[Any] = []
        for name, array_type in bundle_type.arrays.items():
            members.append((name, nb.types.CPointer(array_type.dtype)))
            if array_type.ndim:
                members.append((f"shape_of_{name}", nb.types.UniTuple(nb.types.intp, array_type.ndim)))
        super().__init__(manager, bundle_type, members)


@unbox(BundleType)
def _read_table(bundle_type: BundleType, bundle: Any, c: Any) -> NativeValue:
    number = c.pyapi.object_getattr_string(bundle, "address")
    model = c.context.data_model_manager[bundle_type]
    packed = ir.LiteralStructType(model.get_value_type().elements)
    table = c.builder.inttoptr(c.pyapi.long_as_longlong(number), packed.as_pointer())
    c.pyapi.decref(number)
    return NativeValue(c.builder.load(table))


@infer_getattr
class _Arrays(AttributeTemplate):
    key = BundleType

    def generic_resolve(self, bundle_type: BundleType, name: str) -> Any:  # type: ignore[override]
        """Returns the type of the array of this name, or of the record; None where there is none."""
        array_type = bundle_type.arrays.get(name)
        return array_type if array_type is None or array_type.ndim else array_type.dtype


@lower_getattr_generic(BundleType)
def _array_of(context: Any, builder: Any, bundle_type: BundleType, value: Any, name: str) -> Any:
    array_type = bundle_type.arrays[name]
    bundle = cgutils.create_struct_proxy(bundle_type)(context, builder, value)
    if array_type.ndim == 0:
        return builder.bitcast(getattr(bundle, name), context.get_value_type(array_type.dtype))
    shape = cgutils.unpack_tuple(builder, getattr(bundle, f"shape_of_{name}"))
    strides = [context.get_constant(nb.types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = context.make_array(array_type)(context, builder)
    context.populate_array(array, data=getattr(bundle, name), shape=shape, strides=strides, itemsize=strides[-1], meminfo=None)
    return array._getvalue()


@intrinsic(prefer_literal=True)
def _first_of(typing_context: Any, bundle_type: Any, name: Any, length: Any) -> Any:
    """`first_of(bundle, "name", n)`: the same bundle, of whose array of this name only the first `n` are shown."""
    member = f"shape_of_{name.literal_value}"

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bundle = cgutils.create_struct_proxy(bundle_type)(context, builder, arguments[0])
        number = context.cast(builder, arguments[2], signature.args[2], nb.types.intp)
        setattr(bundle, member, cgutils.pack_array(builder, [number]))
        return bundle._getvalue()

    return bundle_type(bundle_type, name, length), generate


first_of: Any = _first_of  # as compiled code calls it: without the typing context
