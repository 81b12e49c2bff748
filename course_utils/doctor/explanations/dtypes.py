"""Two dtypes that don't go together."""

from __future__ import annotations

from typing import Any

from torch import nn

from course_utils.doctor.explain import Case, Explanation, explains
from course_utils.doctor.parts import named_leaves

_WHOLE = ("int64", "int32", "uint8", "int16", "int8", "bool")


@explains(r"argument #1 'indices' to have one of the following scalar types|one_hot is only applicable|"
          r"tensors used as indices must be|expected scalar type (?:Long|Int) for argument|Expected dtype int64 for "
          r"index")  # fmt: skip
def whole_numbers_expected(case: Case) -> Explanation:
    given = [o for o in case.scene.operands if not o.is_parameter]
    wrong = next((o for o in given if o.dtype not in _WHOLE), given[0] if given else None)
    layer = case.where if case.scene.layer else case.scene.function or "an index"
    name, dtype = (wrong.name or "the index", wrong.dtype) if wrong is not None else ("the index", "no whole number")
    return Explanation(
        "index-dtype", f"In {layer}, {name} is {dtype}: rows are looked up by whole numbers (int64).",
        "x = x.long()  # in the data set, where a conversion to float took the token numbers along",
        {**case.shapes, "index_dtype": dtype},
    )  # fmt: skip


@explains(r"same dtype|share same datatype|mixed dtype|expected scalar type|should be the same|Found dtype|"
          r"expected m1 and m2|does not match weight dtype|got Double|got Long|got Float|got Half|got BFloat16|"
          r"can't be cast to the desired output|not implemented for '(?:Half|BFloat16|Long|Int|Bool|Byte|Char|Short)"
          r"'")  # fmt: skip
def two_dtypes(case: Case) -> Explanation:
    model = case.examination.parts.model
    parameters = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()}) if model is not None else []
    leaves = {name: str(leaf.dtype).removeprefix("torch.") for name, leaf in named_leaves(case.batch, "batch")}
    given = [o for o in case.scene.operands if not o.is_parameter]
    own = [o for o in case.scene.operands if o.is_parameter]
    pairs = [f"{o.name or 'the input'} is {o.dtype}" for o in given if not own or o.dtype != own[0].dtype]
    pairs += [f"{o.name} is {o.dtype}" for o in own[:1]]
    if not pairs:
        pairs = [f"{name} is {dtype}" for name, dtype in leaves.items() if dtype not in parameters]
        pairs += [f"the parameters are {', '.join(parameters)}"] if parameters else []
    evidence: dict[str, Any] = {"parameters": parameters, **leaves, **case.shapes}
    evidence |= {"dtypes": [o.dtype for o in case.scene.operands]} if case.scene.operands else {}
    dtypes = {o.dtype for o in given} or set(leaves.values())
    fix = f"x = x.{_method(parameters)}()  # in the data set"
    if "float64" in dtypes:
        fix = f"x = x.{_method(parameters)}()  # in the data set; NumPy's numbers are float64, from_numpy keeps that"
    elif dtypes & {"float16", "bfloat16"} or {"float16", "bfloat16"} & set(parameters):
        fix = "with torch.autocast(device_type, dtype=torch.bfloat16): …  # casts inputs and weights together"
    elif dtypes & set(_WHOLE) and isinstance(case.scene.module, (nn.Linear, nn.modules.conv._ConvNd)):
        fix = "x = x.float()  # numbers; token numbers go into an nn.Embedding first"
    return Explanation("dtype-mismatch", f"Two dtypes meet in {case.where}: {', '.join(pairs)}.", fix, evidence)


def _method(parameters: list[str]) -> str:
    return {"float64": "double", "float16": "half", "bfloat16": "bfloat16"}.get(parameters[0] if parameters else "",
                                                                              "float")  # fmt: skip


@explains(r"not supported between instances of '\w+' and 'str'|not supported between instances of 'str' and '\w+'|"
          r"unsupported operand type\(s\) for \S+ (?:'(?:float|int)' and 'str'|'str' and)")  # fmt: skip
def text_for_a_number(case: Case) -> Explanation:
    return Explanation(
        "text-for-a-number", f"A number came as text{case.at}: {case.first_line}. YAML reads 1e-4 as text and 1.0e-4 "
        "as a number.",
        "lr = float(config[\"lr\"])",
    )  # fmt: skip
