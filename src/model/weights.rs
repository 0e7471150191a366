//! Named weights, and their safetensors files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::Parameter;
use crate::{host, plain_file};

/// One named array.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// `[out, in]` for a weight, `[d]` for a bias.
    pub shape: Vec<usize>,
    /// The elements in row-major order.
    pub data: Vec<f32>,
}

/// Named weights, sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    tensors: BTreeMap<String, Weight>,
}

impl<'a> FromIterator<(&'a str, &'a Weight)> for Weights {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a Weight)>>(weights: I) -> Self {
        Self { tensors: weights.into_iter().map(|(name, weight)| (name.into(), weight.clone())).collect() }
    }
}

/// Why weights cannot be read, written or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be read or written.
    #[error("cannot access the weights {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The bytes are not a safetensors file.
    #[error("{} is not a whole safetensors file", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: safetensors::SafeTensorError,
    },
    /// The element type is not a floating-point type.
    #[error("{}: the tensor `{name}` holds {dtype}; f32, f64, f16 and bf16 are read", path.display())]
    ElementType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: String,
    },
    /// A number is not finite.
    #[error("{}the weight `{name}` has a NaN or an infinity at position {position}; was the learning rate too large?",
        path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default())]
    NotFinite {
        /// The file, if the weights came from one.
        path: Option<PathBuf>,
        /// The tensor.
        name: String,
        /// The position of the number.
        position: usize,
    },
    /// A parameter of the model is missing.
    #[error("the model needs the weight `{name}`, which is missing; there is: {found}")]
    Missing {
        /// The parameter.
        name: String,
        /// The weights that exist.
        found: String,
    },
    /// A weight is not 0, although this version supports only 0 for it.
    #[error("the weight `{name}` is not 0; this version computes with 0 alone, and would give other logits")]
    NotZero {
        /// The weight.
        name: String,
    },
    /// The number of elements differs from the shape.
    #[error("the weight `{name}` is {shape:?}, but holds {len} numbers")]
    Length {
        /// The weight.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Number of elements.
        len: usize,
    },
    /// A weight is not a matrix, although the model needs one.
    #[error("the weight `{name}` is {got:?}, but the model needs a matrix [out, in]")]
    NoMatrix {
        /// The weight.
        name: String,
        /// Its shape.
        got: Vec<usize>,
    },
    /// A weight has a different shape than the model's parameter.
    #[error("the weight `{name}` is {got:?}, but the model needs {want:?}")]
    Shape {
        /// The parameter.
        name: String,
        /// The shape needed.
        want: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// The model has no parameter for a weight.
    #[error("the model `{model}` has no parameter `{name}`; were the weights trained with another model?")]
    Unused {
        /// The model.
        model: String,
        /// The weight.
        name: String,
    },
}

impl Weights {
    /// Returns the weight of this name.
    pub fn get(&self, name: &str) -> Option<&Weight> {
        self.tensors.get(name)
    }

    /// Adds or replaces a weight.
    pub fn insert(&mut self, name: &str, weight: Weight) {
        self.tensors.insert(name.into(), weight);
    }

    /// Returns names and weights, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Weight)> {
        self.tensors.iter().map(|(name, weight)| (name.as_str(), weight))
    }

    /// Returns the number of weights.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns whether there are no weights.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Reads a safetensors file. Floating-point numbers of other widths are converted to f32.
    ///
    /// # Errors
    /// [`WeightsError::Io`], [`WeightsError::Format`], [`WeightsError::ElementType`], [`WeightsError::NotFinite`].
    pub fn load(path: &Path) -> Result<Self, WeightsError> {
        let bytes = plain_file::read(path, Self::most_file_bytes());
        let bytes = bytes.map_err(|source| WeightsError::Io { path: path.into(), source })?;
        Self::from_safetensors(&bytes, path)
    }

    /// Returns the size of the largest file that is read: half of the host's memory, since the file's bytes and their
    /// f32 numbers are held at the same time.
    pub(crate) fn most_file_bytes() -> u64 {
        host::memory_bytes() / 2
    }

    /// Parses the bytes of a safetensors file; `path` names it in errors. Floating-point numbers of other widths are
    /// converted to f32.
    ///
    /// # Errors
    /// [`WeightsError::Format`], [`WeightsError::ElementType`], [`WeightsError::NotFinite`].
    pub fn from_safetensors(bytes: &[u8], path: &Path) -> Result<Self, WeightsError> {
        let file =
            SafeTensors::deserialize(bytes).map_err(|source| WeightsError::Format { path: path.into(), source })?;
        let mut weights = Self::default();
        for (name, tensor) in file.tensors() {
            let Some(data) = floats(&tensor) else {
                let dtype = format!("{:?}", tensor.dtype());
                return Err(WeightsError::ElementType { path: path.into(), name, dtype });
            };
            if let Some(position) = first_not_finite(&data) {
                return Err(WeightsError::NotFinite { path: Some(path.into()), name, position });
            }
            weights.insert(&name, Weight { shape: tensor.shape().to_vec(), data });
        }
        Ok(weights)
    }

    /// Returns the bytes of a safetensors file of f32 tensors. They are the same for the same weights.
    ///
    /// # Errors
    /// [`WeightsError::Length`] if the number of elements of a weight differs from its shape.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, WeightsError> {
        let views =
            self.tensors.iter().map(|(name, weight)| {
                let bytes = bytemuck::cast_slice(&weight.data);
                let view = TensorView::new(Dtype::F32, weight.shape.clone(), bytes).map_err(|_| {
                    WeightsError::Length { name: name.clone(), shape: weight.shape.clone(), len: weight.data.len() }
                })?;
                Ok((name, view))
            });
        let views = views.collect::<Result<Vec<_>, WeightsError>>()?;
        Ok(safetensors::serialize(views, None).expect("valid views make a valid file"))
    }

    /// Checks that every number is finite.
    ///
    /// # Errors
    /// [`WeightsError::NotFinite`].
    pub fn check_finite(&self) -> Result<(), WeightsError> {
        let stray = |(name, weight): (&str, &Weight)| {
            let position = first_not_finite(&weight.data)?;
            Some(WeightsError::NotFinite { path: None, name: name.into(), position })
        };
        self.iter().find_map(stray).map_or(Ok(()), Err)
    }

    /// Checks that there is one finite weight of the right shape for each parameter, and no other weight. Untrained
    /// parameters may be missing.
    ///
    /// # Errors
    /// [`WeightsError::Missing`], [`WeightsError::Shape`], [`WeightsError::Length`], [`WeightsError::NotFinite`],
    /// [`WeightsError::NotZero`], [`WeightsError::Unused`].
    pub fn check(&self, model: &str, parameters: &[Parameter]) -> Result<(), WeightsError> {
        self.check_finite()?;
        for (name, Weight { shape, data }) in self.iter() {
            let count = shape.iter().try_fold(1usize, |product, &width| product.checked_mul(width));
            if count != Some(data.len()) {
                return Err(WeightsError::Length { name: name.into(), shape: shape.clone(), len: data.len() });
            }
        }
        for parameter in parameters {
            let name = parameter.name.clone();
            let want = parameter.shape.clone();
            match self.get(&name) {
                None if parameter.trained => return Err(self.missing(&name)),
                Some(weight) if !parameter.trained && weight.data.iter().any(|&x| x != 0.0) => {
                    return Err(WeightsError::NotZero { name });
                }
                Some(weight) if weight.shape != want => {
                    return Err(WeightsError::Shape { name, want, got: weight.shape.clone() });
                }
                _ => {}
            }
        }
        match self.iter().find(|(name, _)| !parameters.iter().any(|p| p.name == *name)) {
            Some((name, _)) => Err(WeightsError::Unused { model: model.into(), name: name.into() }),
            None => Ok(()),
        }
    }

    /// Returns the error that a weight is missing.
    pub(super) fn missing(&self, name: &str) -> WeightsError {
        WeightsError::Missing { name: name.into(), found: self.summary() }
    }

    fn summary(&self) -> String {
        let names: Vec<String> = self.iter().map(|(name, weight)| format!("{name} {:?}", weight.shape)).collect();
        if names.is_empty() { "nothing".into() } else { names.join(", ") }
    }
}

/// Returns the elements of a tensor as f32, or `None` for other types than floating point. The bytes need not be
/// aligned.
fn floats(tensor: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = tensor.data();
    let wide = |size: usize| bytes.chunks_exact(size);
    Some(match tensor.dtype() {
        Dtype::F32 => wide(4).map(bytemuck::pod_read_unaligned).collect(),
        Dtype::F64 => wide(8).map(|b| bytemuck::pod_read_unaligned::<f64>(b) as f32).collect(),
        Dtype::F16 => wide(2).map(|b| bytemuck::pod_read_unaligned::<half::f16>(b).to_f32()).collect(),
        Dtype::BF16 => wide(2).map(|b| bytemuck::pod_read_unaligned::<half::bf16>(b).to_f32()).collect(),
        _ => return None,
    })
}

/// Returns the position of the first number that is not finite.
fn first_not_finite(data: &[f32]) -> Option<usize> {
    const CHUNK: usize = 4096;
    // To look at all numbers of a chunk is quicker than to stop at the first stray one.
    let is_stray = |chunk: &[f32]| chunk.iter().fold(false, |found, x| found | !x.is_finite());
    let start = CHUNK * data.chunks(CHUNK).position(is_stray)?;
    Some(start + data[start..].iter().position(|x| !x.is_finite())?)
}

#[cfg(test)]
mod tests {
    use super::first_not_finite;

    #[test]
    fn the_first_stray_number_is_found_in_any_chunk() {
        let mut data = vec![0.5f32; 10_000];
        assert_eq!(first_not_finite(&data), None);
        for at in [9_999, 8_192, 8_191, 4_096, 17, 0] {
            data[at] = if at % 2 == 0 { f32::NAN } else { f32::NEG_INFINITY };
            assert_eq!(first_not_finite(&data), Some(at));
        }
        assert_eq!(first_not_finite(&[]), None);
    }
}
