//! Tests every call on every device. `LAPIDARY_TEST_DEVICE=cuda` selects the tests that can run on GPU 0; [`emulated`]
//! does the same with an emulated GPU. The checks of a device are functions of `lapidary-battery`, and each is a test
//! here.

#![allow(clippy::unwrap_used)]

mod common;

#[cfg(feature = "cuda")]
mod emulated;
mod gather;
mod gradients;
mod passes;
#[cfg(feature = "cuda")]
mod planted;
mod sim;
mod windows;

macro_rules! tests {
    ($($module:ident { any: $($any:ident)*; cpu: $($cpu:ident)*; })*) => {
        $(mod $module {
            tests!(in $module $($any)* $($cpu)*);
        })*
    };
    (in $module:ident $($check:ident)*) => {
        $(#[test]
        fn $check() {
            lapidary_battery::check(concat!(stringify!($module), "::", stringify!($check)));
        })*
    };
}

lapidary_battery::for_each_check!(tests);
