# Types of the public names, which `__init__.py` loads when they are used.

from mirage_dsl.api.compatibility import (
    convert_dtype_to_torch_type as convert_dtype_to_torch_type,
)
from mirage_dsl.api.compatibility import from_json as from_json
from mirage_dsl.api.compatibility import generate_cuda_program as generate_cuda_program
from mirage_dsl.api.compatibility import (
    generate_triton_program as generate_triton_program,
)
from mirage_dsl.api.compatibility import optimize as optimize
from mirage_dsl.api.compatibility import set_gpu_device_id as set_gpu_device_id
from mirage_dsl.api.graph import Graph as Graph
from mirage_dsl.api.graph import new_graph as new_graph
from mirage_dsl.api.graph import new_kernel_graph as new_kernel_graph
from mirage_dsl.api.graph import new_threadblock_graph as new_threadblock_graph
from mirage_dsl.api.graph import superoptimize as superoptimize
from mirage_dsl.api.kernel import BoundKernel as BoundKernel
from mirage_dsl.api.kernel import Kernel as Kernel
from mirage_dsl.api.kernel import kernel as kernel
from mirage_dsl.backends.triton.running.screen import compile_only as compile_only
from mirage_dsl.core.errors import CacheError as CacheError
from mirage_dsl.core.errors import CheckError as CheckError
from mirage_dsl.core.errors import CompileError as CompileError
from mirage_dsl.core.errors import DTypeError as DTypeError
from mirage_dsl.core.errors import EquivalenceError as EquivalenceError
from mirage_dsl.core.errors import MirageError as MirageError
from mirage_dsl.core.errors import ParseError as ParseError
from mirage_dsl.core.errors import SearchError as SearchError
from mirage_dsl.core.errors import SettingError as SettingError
from mirage_dsl.core.errors import ShapeError as ShapeError
from mirage_dsl.core.errors import TraceError as TraceError
from mirage_dsl.core.errors import UnsupportedError as UnsupportedError
from mirage_dsl.core.types import TensorSpec as TensorSpec
from mirage_dsl.core.types import bf16 as bf16
from mirage_dsl.core.types import boolean as boolean
from mirage_dsl.core.types import f8e4m3 as f8e4m3
from mirage_dsl.core.types import f8e5m2 as f8e5m2
from mirage_dsl.core.types import f16 as f16
from mirage_dsl.core.types import f32 as f32
from mirage_dsl.core.types import f64 as f64
from mirage_dsl.core.types import i8 as i8
from mirage_dsl.core.types import i16 as i16
from mirage_dsl.core.types import i32 as i32
from mirage_dsl.core.types import i64 as i64
from mirage_dsl.core.types import u8 as u8
from mirage_dsl.cost.explain import Explanation as Explanation
from mirage_dsl.cost.explain import explain as explain
from mirage_dsl.frontend import namespace
from mirage_dsl.frontend.arguments import spec as spec
from mirage_dsl.frontend.composites import batch_norm as batch_norm
from mirage_dsl.frontend.composites import einsum as einsum
from mirage_dsl.frontend.composites import group_norm as group_norm
from mirage_dsl.frontend.composites import layer_norm as layer_norm
from mirage_dsl.frontend.composites import norm as norm
from mirage_dsl.frontend.composites import rms_norm as rms_norm
from mirage_dsl.frontend.composites import (
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from mirage_dsl.frontend.composites import softmax as softmax
from mirage_dsl.frontend.composites import std as std
from mirage_dsl.frontend.composites import var as var
from mirage_dsl.frontend.constructors import arange as arange
from mirage_dsl.frontend.constructors import eye as eye
from mirage_dsl.frontend.constructors import full as full
from mirage_dsl.frontend.constructors import ones as ones
from mirage_dsl.frontend.constructors import tril as tril
from mirage_dsl.frontend.constructors import triu as triu
from mirage_dsl.frontend.constructors import zeros as zeros
from mirage_dsl.frontend.functions import abs as abs
from mirage_dsl.frontend.functions import add as add
from mirage_dsl.frontend.functions import amax as amax
from mirage_dsl.frontend.functions import amin as amin
from mirage_dsl.frontend.functions import argmax as argmax
from mirage_dsl.frontend.functions import argmin as argmin
from mirage_dsl.frontend.functions import astype as astype
from mirage_dsl.frontend.functions import bitwise_and as bitwise_and
from mirage_dsl.frontend.functions import bitwise_not as bitwise_not
from mirage_dsl.frontend.functions import bitwise_or as bitwise_or
from mirage_dsl.frontend.functions import bitwise_xor as bitwise_xor
from mirage_dsl.frontend.functions import broadcast_to as broadcast_to
from mirage_dsl.frontend.functions import cat as cat
from mirage_dsl.frontend.functions import chunk as chunk
from mirage_dsl.frontend.functions import clamp as clamp
from mirage_dsl.frontend.functions import clip as clip
from mirage_dsl.frontend.functions import concat as concat
from mirage_dsl.frontend.functions import concatenate as concatenate
from mirage_dsl.frontend.functions import cumprod as cumprod
from mirage_dsl.frontend.functions import cumsum as cumsum
from mirage_dsl.frontend.functions import div as div
from mirage_dsl.frontend.functions import embedding as embedding
from mirage_dsl.frontend.functions import equal as equal
from mirage_dsl.frontend.functions import erf as erf
from mirage_dsl.frontend.functions import exp as exp
from mirage_dsl.frontend.functions import exp2 as exp2
from mirage_dsl.frontend.functions import expand as expand
from mirage_dsl.frontend.functions import expand_dims as expand_dims
from mirage_dsl.frontend.functions import flatten as flatten
from mirage_dsl.frontend.functions import floor_divide as floor_divide
from mirage_dsl.frontend.functions import gather as gather
from mirage_dsl.frontend.functions import gelu as gelu
from mirage_dsl.frontend.functions import greater as greater
from mirage_dsl.frontend.functions import greater_equal as greater_equal
from mirage_dsl.frontend.functions import index_select as index_select
from mirage_dsl.frontend.functions import less as less
from mirage_dsl.frontend.functions import less_equal as less_equal
from mirage_dsl.frontend.functions import linear as linear
from mirage_dsl.frontend.functions import log as log
from mirage_dsl.frontend.functions import masked_fill as masked_fill
from mirage_dsl.frontend.functions import matmul as matmul
from mirage_dsl.frontend.functions import max as max
from mirage_dsl.frontend.functions import maximum as maximum
from mirage_dsl.frontend.functions import mean as mean
from mirage_dsl.frontend.functions import min as min
from mirage_dsl.frontend.functions import minimum as minimum
from mirage_dsl.frontend.functions import mul as mul
from mirage_dsl.frontend.functions import narrow as narrow
from mirage_dsl.frontend.functions import neg as neg
from mirage_dsl.frontend.functions import not_equal as not_equal
from mirage_dsl.frontend.functions import permute as permute
from mirage_dsl.frontend.functions import pow as pow
from mirage_dsl.frontend.functions import prod as prod
from mirage_dsl.frontend.functions import reciprocal as reciprocal
from mirage_dsl.frontend.functions import relu as relu
from mirage_dsl.frontend.functions import remainder as remainder
from mirage_dsl.frontend.functions import repeat_interleave as repeat_interleave
from mirage_dsl.frontend.functions import reshape as reshape
from mirage_dsl.frontend.functions import rsqrt as rsqrt
from mirage_dsl.frontend.functions import shift_left as shift_left
from mirage_dsl.frontend.functions import shift_right as shift_right
from mirage_dsl.frontend.functions import sigmoid as sigmoid
from mirage_dsl.frontend.functions import silu as silu
from mirage_dsl.frontend.functions import split as split
from mirage_dsl.frontend.functions import sqrt as sqrt
from mirage_dsl.frontend.functions import square as square
from mirage_dsl.frontend.functions import squeeze as squeeze
from mirage_dsl.frontend.functions import stack as stack
from mirage_dsl.frontend.functions import sub as sub
from mirage_dsl.frontend.functions import sum as sum
from mirage_dsl.frontend.functions import swapaxes as swapaxes
from mirage_dsl.frontend.functions import take_along_dim as take_along_dim
from mirage_dsl.frontend.functions import tanh as tanh
from mirage_dsl.frontend.functions import transpose as transpose
from mirage_dsl.frontend.functions import unbind as unbind
from mirage_dsl.frontend.functions import unflatten as unflatten
from mirage_dsl.frontend.functions import unsqueeze as unsqueeze
from mirage_dsl.frontend.functions import where as where
from mirage_dsl.ir.canonical import diff as diff
from mirage_dsl.ir.check import check as check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import BlockGraph as BlockGraph
from mirage_dsl.ir.graph import KernelGraph as KernelGraph
from mirage_dsl.ir.graph import Schedule as Schedule
from mirage_dsl.ir.text.parser import parse as parse
from mirage_dsl.search.result import Candidate as Candidate
from mirage_dsl.search.result import SearchResult as SearchResult
from mirage_dsl.search.sizes import Constraints as Constraints
from mirage_dsl.search.why_not import WhyNot as WhyNot
from mirage_dsl.search.why_not import why_not as why_not
from mirage_dsl.store.superoptimize import superoptimize_all as superoptimize_all
from mirage_dsl.verify.certificate import Certificate as Certificate
from mirage_dsl.verify.verifier import verify as verify

float16 = f16
bfloat16 = bf16
float32 = f32
float64 = f64
float8_e4m3 = f8e4m3
float8_e4m3fn = f8e4m3
float8_e5m2 = f8e5m2
int8 = i8
uint8 = u8
int16 = i16
int32 = i32
int64 = i64
evaluate = evaluate_numpy
functions = namespace

__version__: str
