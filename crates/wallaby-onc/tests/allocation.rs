//! A hostile length never allocates more than arrived: measured, by an allocator that counts. Apart from other tests, which need
//! none.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use wallaby_onc::xdr::{DecodeError, Malformed, Reader, Xdr, XdrLimits};

/// The system's allocator, which also remembers the largest piece that a thread asked for.
struct Counting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    LARGEST.with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: every request is handed to the system's allocator as it is; the counter is a plain cell that needs neither
// memory nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The largest piece of memory that reading took; the reading must fail because the bytes end.
fn largest_piece<T>(
    bytes: Vec<u8>,
    read: impl FnOnce(&mut Reader) -> Result<T, DecodeError>,
) -> usize {
    let limits = XdrLimits {
        memory: usize::MAX,
        length: u32::MAX,
    };
    let mut reader = Reader::new(Bytes::from(bytes), limits);
    LARGEST.with(|largest| largest.set(0));
    let read = read(&mut reader);
    let largest = LARGEST.with(Cell::get);
    let Err(error) = read else {
        panic!("more was read than arrived");
    };
    assert!(
        matches!(error.problem, Malformed::Ended { .. }),
        "{error}: the claimed length is beyond the end"
    );
    largest
}

#[test]
fn strings_and_opaque_data_of_a_claimed_length_allocate_nothing() {
    let bytes = || [&[0xff; 4][..], &[0; 1000]].concat();
    assert_eq!(largest_piece(bytes(), |reader| reader.opaque(None)), 0);
    assert_eq!(largest_piece(bytes(), |reader| reader.text(None)), 0);
}

#[test]
fn arrays_of_a_claimed_length_allocate_what_arrived_and_no_more() {
    let bytes = || [&[0xff; 4][..], &[0; 1000]].concat();
    let numbers = largest_piece(bytes(), |reader| reader.array(None, u32::decode));
    assert_eq!(numbers, 1000);
    // An element of four bytes and sixteen in memory: room for all that can come is made as they come.
    let pairs = largest_piece(bytes(), |reader| {
        reader.array(None, |reader| {
            u32::decode(reader).map(|number| [u64::from(number); 2])
        })
    });
    assert!(pairs <= 2 * 250 * 16, "{pairs} bytes for 250 elements");
    let fixed = largest_piece(bytes(), |reader| {
        reader.fixed_array::<_, 100_000>(u32::decode)
    });
    assert_eq!(fixed, 1004);
}
