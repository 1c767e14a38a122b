//! Panics of code that is not Wallaby's own: what they said, and how far they go.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// What a panic of the handler, or of whatever else it is, said.
pub(crate) fn panic_message(who: &str, panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "{who} panicked: {}",
        text.as_deref().unwrap_or("no message")
    )
}

/// Does what runs code of the application where nobody may panic: wakers, drops. A panic is logged, and ends there.
pub(crate) fn contain(whose: &str, act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        let panic_said = panic_message(whose, &*panic);
        tracing::error!("{panic_said}");
        std::mem::forget(panic); // its drop may panic as well
    }
}

/// Does what runs code that carries bytes and is not Wallaby's own: a panic there is an error of the stream, and is logged.
pub(crate) fn carried<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let said = panic_message("the transport", &*panic);
        tracing::error!("{said}");
        std::mem::forget(panic); // its drop may panic as well
        Err(io::Error::other(said))
    })
}

/// The same of what is polled.
pub(crate) fn polled<T>(act: impl FnOnce() -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    carried(|| Ok(act())).unwrap_or_else(|panicked| Poll::Ready(Err(panicked)))
}

/// The same of what is waited for.
pub(crate) async fn carried_by<T>(act: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let mut act = pin!(act);
    std::future::poll_fn(|cx| polled(|| act.as_mut().poll(cx))).await
}
