//! The adapter in C, loaded: servers and client handles of libtirpc.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::fleet::Transport;

/// The functions of the adapter. It stays loaded until the process ends, so they can be copied.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    serve: unsafe extern "C" fn(c_int, c_int, u32),
    open: unsafe extern "C" fn(c_int, u16, c_int, u32) -> *mut Client,
    call:
        unsafe extern "C" fn(*mut Client, *const c_char, u32, *mut c_char, u32, *mut u32) -> c_int,
    take: unsafe extern "C" fn(*mut Client, *const c_char, u32) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    close: unsafe extern "C" fn(*mut Client),
}

/// A client handle in C.
#[repr(C)]
struct Client {
    _opaque: [u8; 0],
}

impl Library {
    /// Loads an adapter.
    ///
    /// # Errors
    /// It is not there, or has not what it should.
    pub fn load(path: &Path) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the name ends with a zero. Loading runs no code but that of libtirpc's and the C library's own start.
        let loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        let loaded =
            NonNull::new(loaded).with_context(|| format!("{} can't be loaded", path.display()))?;
        let symbol = |name: &CStr| {
            // SAFETY: the library is loaded, and the name ends with a zero.
            let symbol = unsafe { libc::dlsym(loaded.as_ptr(), name.as_ptr()) };
            NonNull::new(symbol)
                .with_context(|| format!("{} has no {}", path.display(), name.to_string_lossy()))
        };
        // SAFETY: these are the functions of adapter.c, with these types there; pointers to data and to functions are
        // the same on all systems that have dlsym.
        unsafe {
            use std::mem::transmute;
            Ok(Self {
                serve: transmute::<*mut c_void, unsafe extern "C" fn(c_int, c_int, u32)>(
                    symbol(c"relay_onc_serve")?.as_ptr(),
                ),
                open: transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(c_int, u16, c_int, u32) -> *mut Client,
                >(symbol(c"relay_onc_open")?.as_ptr()),
                call: transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(
                        *mut Client,
                        *const c_char,
                        u32,
                        *mut c_char,
                        u32,
                        *mut u32,
                    ) -> c_int,
                >(symbol(c"relay_onc_call")?.as_ptr()),
                take: transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Client, *const c_char, u32) -> c_int,
                >(symbol(c"relay_onc_take")?.as_ptr()),
                error: transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(
                    symbol(c"relay_onc_error")?.as_ptr(),
                ),
                close: transmute::<*mut c_void, unsafe extern "C" fn(*mut Client)>(
                    symbol(c"relay_onc_close")?.as_ptr(),
                ),
            })
        }
    }

    /// Serves on a socket that is bound, and listens if it is one for streams; returns only if that fails.
    pub(super) fn serve(&self, socket: RawFd, transport: Transport, buffer: u32) {
        // SAFETY: the descriptor is that of a bound socket, and nobody else's any more.
        unsafe { (self.serve)(socket, is_stream(transport), buffer) };
    }

    /// A handle for a server on this machine, over UDP or TCP. `buffer` is for a message, 0 libtirpc's own choice.
    ///
    /// # Errors
    /// There is no socket or no connection.
    pub fn open(&self, transport: Transport, address: SocketAddrV4, buffer: u32) -> Result<Handle> {
        let socket = match transport {
            Transport::Udp => UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.into_raw_fd(),
            Transport::Tcp => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.into_raw_fd()
            }
            other => bail!("libtirpc is not measured over {other}"),
        };
        // SAFETY: the handle takes over the descriptor.
        let client = unsafe { (self.open)(socket, address.port(), is_stream(transport), buffer) };
        let client = NonNull::new(client).with_context(|| format!("no client for {address}"))?;
        Ok(Handle {
            tirpc: *self,
            client,
            answer: Vec::new(),
        })
    }

    fn check(&self, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: libtirpc's texts for errors are constants that end with a zero.
        let text = unsafe { CStr::from_ptr((self.error)(status)) };
        bail!("libtirpc: {}", text.to_string_lossy());
    }
}

fn is_stream(transport: Transport) -> c_int {
    c_int::from(transport != Transport::Udp)
}

/// A client handle, used by one thread at a time.
#[derive(Debug)]
pub struct Handle {
    tirpc: Library,
    client: NonNull<Client>,
    answer: Vec<u8>,
}

// SAFETY: libtirpc ties handles to no thread.
unsafe impl Send for Handle {}

impl Handle {
    /// Calls the procedure that answers with what it got.
    ///
    /// # Errors
    /// libtirpc's.
    pub fn pass(&mut self, payload: &[u8]) -> Result<&[u8]> {
        self.answer.resize(payload.len(), 0);
        let room = u32::try_from(payload.len())?;
        let mut length = 0;
        // SAFETY: the handle lives and is borrowed by this thread alone; the payload is only read, so many bytes of it;
        // the answer has room for as many.
        let status = unsafe {
            (self.tirpc.call)(
                self.client.as_ptr(),
                payload.as_ptr().cast(),
                room,
                self.answer.as_mut_ptr().cast(),
                room,
                &mut length,
            )
        };
        self.tirpc.check(status)?;
        ensure!(length <= room, "an answer that is too long");
        Ok(&self.answer[..length as usize])
    }

    /// Calls the procedure that answers with nothing.
    ///
    /// # Errors
    /// libtirpc's.
    pub fn take(&mut self, argument: &[u8]) -> Result<()> {
        let length = u32::try_from(argument.len())?;
        // SAFETY: the handle lives and is borrowed by this thread alone; so many bytes of the argument are only read.
        let status =
            unsafe { (self.tirpc.take)(self.client.as_ptr(), argument.as_ptr().cast(), length) };
        self.tirpc.check(status)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { (self.tirpc.close)(self.client.as_ptr()) };
    }
}
