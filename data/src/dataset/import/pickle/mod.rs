//! Reads Python's pickle format as data.
//!
//! A pickle is a program for a small stack machine, which may name any Python function and call it. This reader never
//! calls anything: the few names that data files need become inert objects, and any other name is an error. Objects
//! live in one arena and refer to each other by index, so neither building nor dropping them recurses, whatever the
//! bytes are. Memory is bounded by a multiple of the file's size.

mod vm;

use std::io::Read;
use std::path::Path;

use super::source::Meter;
use crate::dataset::error::{Error, Result};
use vm::Vm;

/// A value on the stack, which is small and copied freely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// A unicode string.
    Text(Span),
    /// Bytes, or a Python 2 string.
    Bytes(Span),
    Object(u32),
}

/// A range of the file. Positions past its end are in the unescaped strings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub start: usize,
    pub len: usize,
}

/// An object that the vm has built.
#[derive(Clone, Debug)]
pub(super) enum Object {
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Global(Global),
    Instance { class: Global, args: Value, state: Value },
}

/// The names that a data file may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    Ndarray,
    Reconstruct,
    FromBuffer,
    Dtype,
    Scalar,
    Csr,
    Dict,
    List,
    Bytes,
    Encode,
    Reconstructor,
    PyObject,
}

impl Global {
    pub(super) fn named(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("numpy", "ndarray") => Self::Ndarray,
            ("numpy", "dtype") => Self::Dtype,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Self::Reconstruct,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Self::Scalar,
            ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Self::FromBuffer,
            ("scipy.sparse.csr" | "scipy.sparse._csr" | "scipy.sparse", "csr_matrix" | "csr_array") => Self::Csr,
            ("collections", "defaultdict" | "OrderedDict") => Self::Dict,
            ("__builtin__" | "builtins", "dict") => Self::Dict,
            ("__builtin__" | "builtins", "list") => Self::List,
            ("__builtin__" | "builtins", "bytes" | "bytearray") => Self::Bytes,
            ("__builtin__" | "builtins", "object") => Self::PyObject,
            ("_codecs", "encode") => Self::Encode,
            ("copy_reg" | "copyreg", "_reconstructor") => Self::Reconstructor,
            _ => return None,
        })
    }
}

/// A parsed pickle.
pub(super) struct Pickle {
    /// The file's name, for messages.
    pub file: String,
    pub bytes: Vec<u8>,
    /// Strings that are escaped in the file, unescaped.
    pub extra: Vec<u8>,
    /// The arena.
    pub objects: Vec<Object>,
    /// The result.
    pub root: Value,
}

impl Pickle {
    /// Reads a pickle from a file.
    pub(super) fn open(meter: &Meter<'_>, path: &Path) -> Result<Self> {
        let mut file = meter.open(path, "a Planetoid dataset is eight files, ind.NAME.*")?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(Error::io("read", path))?;
        Self::parse(path.display().to_string(), bytes)
    }

    /// Reads a pickle from bytes; `file` names them in errors.
    pub(super) fn parse(file: String, bytes: Vec<u8>) -> Result<Self> {
        Vm::new(Self { file, bytes, extra: Vec::new(), objects: Vec::new(), root: Value::None }).run()
    }

    /// Returns the bytes of a string of either kind.
    pub(super) fn string(&self, span: Span) -> &[u8] {
        let (all, start) = match span.start.checked_sub(self.bytes.len()) {
            None => (&self.bytes, span.start),
            Some(start) => (&self.extra, start),
        };
        all.get(start..start + span.len).unwrap_or(&[])
    }

    /// Returns a string of either kind, if it is UTF-8.
    pub(super) fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(span) | Value::Bytes(span) => std::str::from_utf8(self.string(span)).ok(),
            _ => None,
        }
    }

    /// Returns the object that a value refers to.
    pub(super) fn object(&self, value: Value) -> Option<&Object> {
        match value {
            Value::Object(at) => self.objects.get(at as usize),
            _ => None,
        }
    }

    /// Returns the items of a tuple or list.
    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match self.object(value)? {
            Object::Tuple(items) | Object::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns an error about the contents of the pickle.
    pub(super) fn not(&self, why: impl Into<String>) -> Error {
        Error::Import { file: self.file.clone(), why: why.into() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Pickle> {
        Pickle::parse("test".into(), bytes.to_vec())
    }

    #[test]
    fn numbers_and_strings_of_all_protocols() {
        let root = |bytes: &[u8]| read(bytes).unwrap().root;
        assert_eq!(root(b"I42\n."), Value::Int(42));
        assert_eq!(root(b"I01\n."), Value::Bool(true));
        assert_eq!(root(b"L-7L\n."), Value::Int(-7));
        assert_eq!(root(b"\x80\x02\x8a\x02\x00\xff."), Value::Int(-256));
        assert_eq!(root(b"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00."), Value::Int(0));
        assert_eq!(root(b"G\x3f\xf8\x00\x00\x00\x00\x00\x00."), Value::Float(1.5));
        assert!(read(b"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.").is_err(), "2^63 does not fit");
        let text = read(b"S'a\\x00\\n\\'b'\n.").unwrap();
        assert_eq!(text.text(text.root), Some("a\0\n'b"));
        let unicode = read(b"Vna\\u00efve\n.").unwrap();
        assert_eq!(unicode.text(unicode.root), Some("naïve"));
    }

    #[test]
    fn a_call_is_named_and_not_made() {
        for bytes in [
            &b"cos\nsystem\n(S'echo'\ntR."[..],
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R.",
            b"(S'echo'\nios\nsystem\n.",
        ] {
            let error = read(bytes).map(|_| ()).unwrap_err();
            assert!(matches!(&error, Error::Forbidden { global, .. } if global == "os.system"), "{error}");
        }
        let error = read(b"cbuiltins\neval\n.").map(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "test asks to run `builtins.eval`; a data file has no reason to, and nothing was run"
        );
    }

    #[test]
    fn deep_and_greedy_pickles_are_bounded() {
        // A million nested tuples: neither building nor dropping them may recurse.
        let mut deep = vec![b')'];
        deep.resize(1_000_001, 0x85);
        deep.push(b'.');
        assert!(read(&deep).is_ok());
        let error = read(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff.").map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("cut short"), "{error}");
        // One long text that is encoded again and again.
        let mut greedy = b"\x80\x02X\x00\x04\x00\x00".to_vec();
        greedy.resize(greedy.len() + 1024, b'x');
        greedy.extend(b"q\x000c_codecs\nencode\nq\x010");
        for _ in 0..100 {
            greedy.extend(b"h\x01h\x00\x85R0");
        }
        greedy.extend(b"N.");
        let error = read(&greedy).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("times its own size"), "{error}");
    }

    #[test]
    fn a_mark_guards_what_is_below_it() {
        for bytes in
            [&b"K\x01(0."[..], b"t.", b"u.", b"(K\x01u.", b"K\x01K\x01a.", b"}(K\x01u.", b"K\x01)R.", b"h\x07."]
        {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }

        #[test]
        fn no_opcodes_make_it_panic(
            opcodes in proptest::collection::vec(
                proptest::sample::select(b"()]}NtaeuRbq\x00h0120K\x85\x86\x87\x88\x93\x94.cC\x01".to_vec()), 0..200),
        ) {
            let _ = read(&opcodes);
        }
    }
}
