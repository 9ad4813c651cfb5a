import dataclasses

from trainer.config.trained import FORMATS, ExportConfig
from trainer.exporting.formats import without_locations

PROGRAM = """#loc1 = loc("lhs")
#loc2 = loc("/home/me (old)/lib/ops.py":12:0)
module @a attributes {mhlo.is_dynamic = false} {
  func.func private @add(%arg0: tensor<f32> loc("l)hs"), %arg1: tensor<f32> loc("a \\"b\\" (")) -> tensor<f32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<f32> loc(#loc2)
    return %0 : tensor<f32> loc(fused[#loc1, "x"("/home/me/y.py":1:2 to :3)])
  } loc(#loc)
} loc(unknown)
#loc3 = loc("z")
"""


def test_programs_lose_their_locations_and_nothing_else():
    assert without_locations(PROGRAM) == (
        "module @a attributes {mhlo.is_dynamic = false} {\n"
        "  func.func private @add(%arg0: tensor<f32>, %arg1: tensor<f32>) -> tensor<f32> {\n"
        "    %0 = stablehlo.add %arg0, %arg1 : tensor<f32>\n"
        "    return %0 : tensor<f32>\n"
        "  }\n"
        "}\n"
    )


def test_the_flag_names_the_formats_that_can_be_written():
    text = next(field for field in dataclasses.fields(ExportConfig) if field.name == "format").metadata["text"]
    assert [name for name in FORMATS if name not in text] == []
    assert len({kind.file for kind in FORMATS.values()}) == len(FORMATS)
