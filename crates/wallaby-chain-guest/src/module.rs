//! What makes a module of functions.

use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;

use serde::Deserialize;

use crate::abi::{Given, Input, Output};
use crate::state::{Answer, Error, Exception, Read, State};
use crate::step::Step;

/// What the second argument of a function may be; it says what the function is for.
pub trait Takes<'a>: Sized {
    /// It, if that was given.
    ///
    /// # Errors
    ///
    /// Something else was given.
    fn take(given: Given<'a>) -> Result<Self, Error>;
}

/// The error if it is for something else.
fn other() -> Error {
    let why = "the function is for something else: answers, results or exceptions";
    Error::new(Error::INVALID_ARGUMENT, why.into())
}

/// A chaining function: it runs on what a link has answered.
impl<'a> Takes<'a> for Answer<'a> {
    fn take(given: Given<'a>) -> Result<Self, Error> {
        match given {
            Given::Answer(answer) => Ok(answer),
            _ => Err(other()),
        }
    }
}

/// A chaining function that says of which type that is: it does not run on another one, as far as that shows.
impl<'a, T: Deserialize<'a>> Takes<'a> for Read<T> {
    fn take(given: Given<'a>) -> Result<Self, Error> {
        Answer::take(given)?.read().map(Read)
    }
}

/// A merging function: it runs on what all branches of a split have come to, in their order.
impl<'a> Takes<'a> for Vec<Answer<'a>> {
    fn take(given: Given<'a>) -> Result<Self, Error> {
        match given {
            Given::Results(results) => Ok(results),
            _ => Err(other()),
        }
    }
}

/// A catching function: it runs on an exception.
impl<'a> Takes<'a> for Exception {
    fn take(given: Given<'a>) -> Result<Self, Error> {
        match given {
            Given::Exception(exception) => Ok(exception),
            _ => Err(other()),
        }
    }
}

/// Runs a function on the bytes of an [`Input`], as a server does: the bytes of its [`Output`].
pub fn run<'a, G: Takes<'a>>(
    function: impl FnOnce(State, G) -> Result<Step, Error>,
    input: &'a [u8],
) -> Vec<u8> {
    let output: Output = match postcard::from_bytes::<Input<'_>>(input) {
        Ok(Input { state, given }) => G::take(given).and_then(|given| function(state, given)),
        Err(_) => {
            let why = "the function's input cannot be read";
            Err(Error::new(Error::INVALID_ARGUMENT, why.into()))
        }
    };
    postcard::to_allocvec(&output).unwrap_or_default()
}

/// Bytes that are the server's to write, and never freed: what is called here runs once.
#[doc(hidden)]
pub fn room(length: usize) -> *mut u8 {
    Vec::leak(alloc::vec![0; length]).as_mut_ptr()
}

/// Where bytes are, and how many, for the server to read.
#[doc(hidden)]
pub fn answered(bytes: Vec<u8>) -> u64 {
    let bytes = Vec::leak(bytes);
    (bytes.as_ptr() as u64) << 32 | bytes.len() as u64
}

/// Exports these functions from a module, and what a server needs to call them. Once in a module. On other platforms than
/// `wasm32` it does nothing but check their types.
///
/// The example of the [crate] shows it.
#[macro_export]
macro_rules! export {
    ($($function:ident),+ $(,)?) => {
        const _: () = {
            #[cfg(target_arch = "wasm32")]
            #[unsafe(export_name = "wallaby_abi_1")]
            extern "C" fn room(length: usize) -> *mut u8 {
                $crate::room(length)
            }
        };
        $(const _: () = {
            #[cfg_attr(target_arch = "wasm32", unsafe(export_name = stringify!($function)))]
            #[cfg_attr(not(target_arch = "wasm32"), expect(dead_code, reason = "modules export it"))]
            extern "C" fn exported(input: *const u8, length: usize) -> u64 {
                // SAFETY: the server has written so many bytes there, where `room` said, and nothing else runs here.
                let input = unsafe { ::core::slice::from_raw_parts(input, length) };
                $crate::answered($crate::run($function, input))
            }
        };)+
    };
}

/// What a module without the standard library needs besides: memory that is never freed, and a panic that ends it. It keeps
/// modules so small that they travel with a chain. Once in a module.
///
/// ```ignore
/// #![no_std]
/// extern crate alloc;
/// wallaby_chain_guest::alone!();
/// ```
#[macro_export]
macro_rules! alone {
    () => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            #[global_allocator]
            static MEMORY: $crate::Bump = $crate::Bump::new();

            #[panic_handler]
            fn panic(_: &::core::panic::PanicInfo<'_>) -> ! {
                ::core::arch::wasm32::unreachable()
            }
        };
    };
}

/// Memory that is never freed: an instance of a module runs once. For [`alone!`]; elsewhere than in WebAssembly it has none.
#[derive(Debug)]
pub struct Bump {
    /// Of these bytes nothing is used.
    next: Cell<usize>,
    end: Cell<usize>,
}

impl Bump {
    /// It begins where the module's own data ends.
    #[expect(clippy::new_without_default, reason = "it is for one static")]
    pub const fn new() -> Self {
        let (next, end) = (Cell::new(0), Cell::new(0));
        Self { next, end }
    }
}

// SAFETY: a module of this kind has one thread.
unsafe impl Sync for Bump {}

#[cfg(target_arch = "wasm32")]
const PAGE: usize = 65_536;

/// More pages, behind all others; where they begin.
#[cfg(target_arch = "wasm32")]
fn grow(pages: usize) -> Option<usize> {
    match core::arch::wasm32::memory_grow::<0>(pages) {
        usize::MAX => None,
        before => before.checked_mul(PAGE),
    }
}

#[cfg(not(target_arch = "wasm32"))]
const PAGE: usize = 4096;

#[cfg(not(target_arch = "wasm32"))]
fn grow(_: usize) -> Option<usize> {
    None
}

// SAFETY: what is handed out lies between `next` and `end`, which `grow` has given, is aligned, and is handed out once.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let place = || {
            let start = self.next.get().checked_next_multiple_of(layout.align())?;
            let end = start.checked_add(layout.size())?;
            if end <= self.end.get() && start != 0 {
                self.next.set(end);
                return Some(start);
            }
            // Nobody else grows the memory, so what is given follows what there was, but for the first time.
            let pages = layout.size().checked_add(layout.align())?.div_ceil(PAGE);
            let first = grow(pages)?;
            if first != self.end.get() {
                self.next.set(first);
            }
            self.end.set(first.checked_add(pages.checked_mul(PAGE)?)?);
            let start = self.next.get().checked_next_multiple_of(layout.align())?;
            self.next.set(start.checked_add(layout.size())?);
            Some(start)
        };
        place().map_or(core::ptr::null_mut(), |start| start as *mut u8)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
