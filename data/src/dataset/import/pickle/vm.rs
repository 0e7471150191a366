//! The stack machine that runs a pickle, without calls.

use std::collections::HashMap;

use super::{Global, Object, Pickle, Span, Value};
use crate::dataset::error::{Error, Result};
use crate::host;

/// Memory for an object, with its items and its place on the stack.
const OBJECT_BYTES: u64 = 128;

enum Progress {
    Next,
    Stop(Value),
}

/// The machine while it reads.
pub(super) struct Vm {
    pickle: Pickle,
    at: usize,
    opcode_at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
}

impl Vm {
    /// Returns a machine that is about to read the first opcode of `pickle`.
    pub(super) fn new(pickle: Pickle) -> Self {
        Self { pickle, at: 0, opcode_at: 0, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() }
    }

    /// Reads up to the STOP opcode.
    pub(super) fn run(mut self) -> Result<Pickle> {
        while let Some(step) = self.step()? {
            if let Progress::Stop(root) = step {
                self.pickle.root = root;
                return Ok(self.pickle);
            }
        }
        Err(self.wrong("ends before its STOP"))
    }

    fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Pickle { file: self.pickle.file.clone(), offset: self.opcode_at, why: why.into() }
    }

    /// Takes the next `len` bytes of the file.
    fn take(&mut self, len: u64) -> Result<Span> {
        let left = self.pickle.bytes.len() - self.at;
        if len > left as u64 {
            return Err(self.wrong(format!("needs {len} bytes, but {left} are left; the file is cut short")));
        }
        let span = Span { start: self.at, len: len as usize };
        self.at += span.len;
        Ok(span)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N]> {
        let span = self.take(N as u64)?;
        let mut number = [0; N];
        number.copy_from_slice(self.pickle.string(span));
        Ok(number)
    }

    fn u8(&mut self) -> Result<u64> {
        Ok(u64::from(self.number::<1>()?[0]))
    }

    fn u32(&mut self) -> Result<u64> {
        Ok(u64::from(u32::from_le_bytes(self.number()?)))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.number()?))
    }

    /// Takes the rest of the line, without its end.
    fn line(&mut self) -> Result<Span> {
        let rest = &self.pickle.bytes[self.at..];
        let Some(len) = rest.iter().position(|&b| b == b'\n') else {
            return Err(self.wrong("has a line without an end; the file is cut short"));
        };
        let span = self.take(len as u64)?;
        self.at += 1;
        Ok(span)
    }

    fn line_as<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        let span = self.line()?;
        let text = std::str::from_utf8(self.pickle.string(span)).unwrap_or_default();
        let number = text.trim().trim_end_matches('L').parse().ok();
        number.ok_or_else(|| self.wrong(format!("has `{text:.40}` where {what} should be")))
    }

    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    fn pop(&mut self) -> Result<Value> {
        // A mark is a floor: this opcode must not take what is below it.
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.wrong("takes from an empty stack"));
        }
        Ok(self.stack.pop().unwrap_or(Value::None))
    }

    /// Pops the last mark and returns what was pushed since.
    fn pop_mark(&mut self) -> Result<Vec<Value>> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => Err(self.wrong("has no mark where it needs one")),
        }
    }

    fn push_object(&mut self, object: Object) -> Result<()> {
        let Ok(at) = u32::try_from(self.pickle.objects.len()) else {
            return Err(self.wrong("builds more objects than 32 bits can number"));
        };
        if (at + 1).is_power_of_two() && at > 1 << 20 {
            let need = u64::from(at) * OBJECT_BYTES;
            if let Some(lack) = host::lack(need, host::free_bytes()) {
                return Err(self.wrong(format!("builds more than {at} objects, which {lack}")));
            }
        }
        self.pickle.objects.push(object);
        self.push(Value::Object(at));
        Ok(())
    }

    fn push_extra(&mut self, bytes: &[u8], wrap: fn(Span) -> Value) -> Result<()> {
        // Each string is unescaped (a byte may become two) and encoded once. A larger total means that one string is
        // encoded repeatedly.
        if self.pickle.extra.len() + bytes.len() > 4 * self.pickle.bytes.len() {
            return Err(self.wrong("would unfold into many times its own size"));
        }
        let span = Span { start: self.pickle.bytes.len() + self.pickle.extra.len(), len: bytes.len() };
        self.pickle.extra.extend_from_slice(bytes);
        self.push(wrap(span));
        Ok(())
    }

    /// Runs one opcode; returns `None` at the end of the file.
    fn step(&mut self) -> Result<Option<Progress>> {
        self.opcode_at = self.at;
        let Some(&opcode) = self.pickle.bytes.get(self.at) else {
            return Ok(None);
        };
        self.at += 1;
        match opcode {
            b'.' => return Ok(Some(Progress::Stop(self.pop()?))),
            0x80 => {
                let protocol = self.u8()?;
                if protocol > 5 {
                    return Err(self.wrong(format!("has protocol {protocol}; 0 to 5 are known")));
                }
            }
            0x95 => {
                self.u64()?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_mark()?;
            }
            b'2' => {
                let top = self.pop()?;
                self.push(top);
                self.push(top);
            }
            b'N' | 0x88 | 0x89 | b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b | b'F' | b'G' => self.scalar(opcode)?,
            b'S' | b'T' | b'U' | b'V' | b'X' | b'B' | b'C' | 0x8c | 0x8d | 0x8e | 0x96 => self.string(opcode)?,
            b'p' | b'q' | b'r' | 0x94 | b'g' | b'h' | b'j' => self.memo(opcode)?,
            b')' | b't' | 0x85..=0x87 | b']' | b'l' | b'}' | b'd' => self.container(opcode)?,
            b'a' | b'e' | b's' | b'u' => self.fill(opcode)?,
            b'c' | 0x93 | b'i' => self.global(opcode)?,
            b'R' | 0x81 => {
                let args = self.pop()?;
                let callee = self.pop()?;
                self.call(callee, args)?;
            }
            b'b' => self.build()?,
            b'P' | b'Q' => return Err(self.wrong("refers to an object outside the file")),
            other => return Err(self.wrong(format!("has opcode {other:#04x}, which files of arrays do not use"))),
        }
        Ok(Some(Progress::Next))
    }

    fn scalar(&mut self, opcode: u8) -> Result<()> {
        let value = match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i64::from(i32::from_le_bytes(self.number()?))),
            b'K' => Value::Int(self.u8()? as i64),
            b'M' => Value::Int(i64::from(u16::from_le_bytes(self.number()?))),
            b'I' if self.pickle.bytes[self.at..].starts_with(b"00\n") => {
                self.at += 3;
                Value::Bool(false)
            }
            b'I' if self.pickle.bytes[self.at..].starts_with(b"01\n") => {
                self.at += 3;
                Value::Bool(true)
            }
            b'I' | b'L' => Value::Int(self.line_as("a 64-bit number")?),
            b'F' => Value::Float(self.line_as("a number")?),
            b'G' => Value::Float(f64::from_be_bytes(self.number()?)),
            _ => {
                let len = if opcode == 0x8a { self.u8()? } else { self.u32()? };
                let span = self.take(len)?;
                self.long(span)?
            }
        };
        self.push(value);
        Ok(())
    }

    /// Returns a two's-complement number of any length, if it fits into 64 bits.
    fn long(&self, span: Span) -> Result<Value> {
        let bytes = self.pickle.string(span);
        let sign = if bytes.last().is_some_and(|&b| b >= 0x80) { 0xff } else { 0 };
        let mut number = [sign; 8];
        let kept = bytes.len().min(8);
        number[..kept].copy_from_slice(&bytes[..kept]);
        let value = i64::from_le_bytes(number);
        let whole = bytes[kept..].iter().all(|&b| b == sign) && (kept < 8 || (value < 0) == (sign != 0));
        if whole { Ok(Value::Int(value)) } else { Err(self.wrong("has a number that 64 bits do not hold")) }
    }

    fn string(&mut self, opcode: u8) -> Result<()> {
        let value = match opcode {
            b'S' => {
                let span = self.line()?;
                let plain = unescape(self.pickle.string(span)).ok_or_else(|| self.wrong("has a broken string"))?;
                return self.push_extra(&plain, Value::Bytes);
            }
            b'V' => {
                let span = self.line()?;
                let text =
                    unescape_unicode(self.pickle.string(span)).ok_or_else(|| self.wrong("has a broken string"))?;
                return self.push_extra(text.as_bytes(), Value::Text);
            }
            _ => {
                let len = match opcode {
                    b'U' | b'C' | 0x8c => self.u8()?,
                    b'T' | b'X' | b'B' => self.u32()?,
                    _ => self.u64()?,
                };
                let span = self.take(len)?;
                if matches!(opcode, b'X' | 0x8c | 0x8d) { Value::Text(span) } else { Value::Bytes(span) }
            }
        };
        self.push(value);
        Ok(())
    }

    fn memo(&mut self, opcode: u8) -> Result<()> {
        let key = match opcode {
            b'p' | b'g' => self.line_as("a memo's number")?,
            b'q' | b'h' => self.u8()?,
            0x94 => self.memo.len() as u64,
            _ => self.u32()?,
        };
        if matches!(opcode, b'g' | b'h' | b'j') {
            let value = self.memo.get(&key).copied();
            let value = value.ok_or_else(|| self.wrong(format!("asks for memo {key}, which was never set")))?;
            self.push(value);
        } else {
            let top = self.pop()?;
            self.push(top);
            self.memo.insert(key, top);
        }
        Ok(())
    }

    fn container(&mut self, opcode: u8) -> Result<()> {
        let object = match opcode {
            b')' => Object::Tuple(Vec::new()),
            b']' => Object::List(Vec::new()),
            b'}' => Object::Dict(Vec::new()),
            b't' => Object::Tuple(self.pop_mark()?),
            b'l' => Object::List(self.pop_mark()?),
            b'd' => {
                let flat = self.pop_mark()?;
                Object::Dict(self.pairs(&flat)?)
            }
            _ => {
                let mut items = Vec::new();
                for _ in 0x84..opcode {
                    items.push(self.pop()?);
                }
                items.reverse();
                Object::Tuple(items)
            }
        };
        self.push_object(object)
    }

    fn pairs(&self, flat: &[Value]) -> Result<Vec<(Value, Value)>> {
        let (pairs, rest) = flat.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.wrong("has a key without a value"));
        }
        Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
    }

    fn fill(&mut self, opcode: u8) -> Result<()> {
        let new = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };
        let container = self.pop()?;
        self.push(container);
        let pairs = if matches!(opcode, b's' | b'u') { self.pairs(&new)? } else { Vec::new() };
        let object = match container {
            Value::Object(at) => self.pickle.objects.get_mut(at as usize),
            _ => None,
        };
        match (object, opcode) {
            (Some(Object::List(items)), b'a' | b'e') => items.extend(new),
            (Some(Object::Dict(items)), b's' | b'u') => items.extend(pairs),
            _ => return Err(self.wrong("adds items to something that holds none")),
        }
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Result<()> {
        let (module, name) = if opcode == 0x93 {
            let name = self.pop()?;
            (self.pop()?, name)
        } else {
            let module = self.line()?;
            (Value::Bytes(module), Value::Bytes(self.line()?))
        };
        let (Some(module), Some(name)) = (self.pickle.text(module), self.pickle.text(name)) else {
            return Err(self.wrong("names a global with a value that is not text"));
        };
        let Some(global) = Global::named(module, name) else {
            let global = format!("{module:.60}.{name:.60}");
            return Err(Error::Forbidden { file: self.pickle.file.clone(), global });
        };
        if opcode == b'i' {
            return Err(self.wrong("creates an object as in Python 1, which files of arrays do not do"));
        }
        self.push_object(Object::Global(global))
    }

    /// Builds the result of calling a name, without calling it.
    fn call(&mut self, callee: Value, args: Value) -> Result<()> {
        let Some(&Object::Global(global)) = self.pickle.object(callee) else {
            return Err(self.wrong("calls something that is not a name"));
        };
        let items = self.pickle.items(args).unwrap_or_default();
        let (first, count) = (items.first().copied(), items.len());
        match global {
            Global::Dict => self.push_object(Object::Dict(Vec::new())),
            Global::List if count == 0 => self.push_object(Object::List(Vec::new())),
            Global::Bytes if count == 0 => self.push_extra(&[], Value::Bytes),
            Global::Bytes if let (Some(bytes @ Value::Bytes(_)), 1) = (first, count) => {
                self.push(bytes);
                Ok(())
            }
            Global::Encode => {
                let latin = first.and_then(|text| self.pickle.text(text)).and_then(to_latin1);
                let latin = latin.ok_or_else(|| self.wrong("encodes text that is not latin-1"))?;
                self.push_extra(&latin, Value::Bytes)
            }
            Global::Reconstruct | Global::Reconstructor => {
                let class = first.and_then(|class| self.pickle.object(class));
                let Some(&Object::Global(class @ (Global::Ndarray | Global::Csr | Global::Dtype))) = class else {
                    return Err(self.wrong("creates an object that is not an array"));
                };
                self.push_object(Object::Instance { class, args: Value::None, state: Value::None })
            }
            Global::Ndarray | Global::FromBuffer | Global::Dtype | Global::Scalar | Global::Csr => {
                self.push_object(Object::Instance { class: global, args, state: Value::None })
            }
            Global::List | Global::Bytes | Global::PyObject => {
                Err(self.wrong("calls a type in a way that is not data"))
            }
        }
    }

    fn build(&mut self) -> Result<()> {
        let new = self.pop()?;
        let target = self.pop()?;
        self.push(target);
        let object = match target {
            Value::Object(at) => self.pickle.objects.get_mut(at as usize),
            _ => None,
        };
        match object {
            Some(Object::Instance { state, .. }) => {
                *state = new;
                Ok(())
            }
            _ => Err(self.wrong("gives a state to something that has none")),
        }
    }
}

/// Returns the bytes of a quoted string with backslash escapes.
fn unescape(quoted: &[u8]) -> Option<Vec<u8>> {
    let quoted = quoted.trim_ascii();
    let (&quote, rest) = quoted.split_first()?;
    let (&last, inside) = rest.split_last()?;
    if quote != last || !matches!(quote, b'\'' | b'"') {
        return None;
    }
    let mut plain = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        plain.push(match bytes.next()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'x' => {
                let digit = |b: u8| char::from(b).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                (high * 16 + low) as u8
            }
            other @ (b'\\' | b'\'' | b'"') => other,
            _ => return None,
        });
    }
    Some(plain)
}

/// Returns a text whose only escapes are \u and \U. Other bytes are latin-1.
fn unescape_unicode(raw: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = match rest {
            [b'\\', b'u', ..] => 4,
            [b'\\', b'U', ..] => 8,
            _ => {
                text.push(char::from(byte));
                rest = after;
                continue;
            }
        };
        let code = std::str::from_utf8(rest.get(2..2 + digits)?).ok()?;
        text.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        rest = &rest[2 + digits..];
    }
    Some(text)
}

fn to_latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
}
