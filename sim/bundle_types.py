"""What a bundle of arrays is to compiled code: the address of its table, and an attribute for each array."""

from typing import Any

import numba as nb
from llvmlite import ir
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, lower_getattr_generic, models, register_model, unbox

from sim.bundle import Bundle, declared


class BundleType(nb.types.Type):
    """Numba's type of a bundle. Its name is short: it becomes part of the name of every function that takes one."""

    def __init__(self, bundle: type[Bundle]) -> None:
        super().__init__(name=bundle.__name__)
        self.arrays = {
            name: nb.types.Array(nb.from_dtype(dtype), ndim, "C") for name, (dtype, ndim) in declared(bundle).items()
        }
        bundle._numba_type_ = self  # type: ignore[attr-defined]


@register_model(BundleType)
class _PlacesModel(models.StructModel):
    """Of each array only where it is and how long its axes are; the rest follows from its type."""

    def __init__(self, manager: Any, bundle_type: BundleType) -> None:
        members: list[Any] = []
        for name, array_type in bundle_type.arrays.items():
            members.append((name, nb.types.CPointer(array_type.dtype)))
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
        """Returns the type of the array of this name, or None."""
        return bundle_type.arrays.get(name)


@lower_getattr_generic(BundleType)
def _array_of(context: Any, builder: Any, bundle_type: BundleType, value: Any, name: str) -> Any:
    array_type = bundle_type.arrays[name]
    bundle = cgutils.create_struct_proxy(bundle_type)(context, builder, value)
    shape = cgutils.unpack_tuple(builder, getattr(bundle, f"shape_of_{name}"))
    strides = [context.get_constant(nb.types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = context.make_array(array_type)(context, builder)
    context.populate_array(array, data=getattr(bundle, name), shape=shape, strides=strides, itemsize=strides[-1], meminfo=None)
    return array._getvalue()
