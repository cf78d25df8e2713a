"""Attribute access as CPython's object protocol defines it, executed by the VM.

Lookups read type and instance dictionaries directly, so that no user code runs unobserved: properties, descriptors,
`__getattr__` and `__getattribute__` written in Python are interpreted. Results are guarded: class attributes by the class
version, instance attributes by their value, methods also by their absence from the instance dictionary.

`load_attribute.py` and `store_attribute.py` dispatch on the type of the object: `instance_attributes.py`, with
`nn_module_attributes.py` for parameters, buffers and submodules; `native_attributes.py` for C classes with their own
attribute access; `class_attributes.py`; `tensor_attributes.py`; `namespace_attributes.py` for modules, functions and
partials. `method_lookup.py` decides whether a special method is written in Python.
"""

from smelt.capture.semantics.attributes.class_attributes import load_plain_class_attr
from smelt.capture.semantics.attributes.instance_attributes import (
    delete_property,
    load_generic,
    load_module_entry,
    load_property,
    object_getattribute,
    store_in_instance,
    store_property,
    wrap_instance_attr,
)
from smelt.capture.semantics.attributes.load_attribute import (
    is_in_instance,
    load_attr,
    load_default,
    load_method,
    load_special,
    wrapper_attributes,
)
from smelt.capture.semantics.attributes.method_lookup import python_method
from smelt.capture.semantics.attributes.namespace_attributes import (
    PLACEHOLDER,
    fill_placeholders,
    load_bound_part,
    partial_parts,
)
from smelt.capture.semantics.attributes.store_attribute import (
    delete_attr,
    store_attr,
    store_generic,
    store_in_module,
    store_named,
)
from smelt.capture.semantics.attributes.tensor_attributes import TENSOR_STATE, shape_of, tensor_member

__all__ = [
    "PLACEHOLDER", "TENSOR_STATE", "delete_attr", "delete_property", "fill_placeholders", "is_in_instance",
    "load_attr", "load_bound_part", "load_default", "load_generic", "load_method", "load_module_entry",
    "load_plain_class_attr", "load_property", "load_special", "object_getattribute", "partial_parts",
    "python_method", "shape_of", "store_attr", "store_generic", "store_in_instance", "store_in_module",
    "store_named", "store_property", "tensor_member", "wrap_instance_attr", "wrapper_attributes",
]  # fmt: skip
