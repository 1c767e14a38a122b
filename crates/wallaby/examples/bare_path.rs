//! The messages of `hot_path` on bare sockets of tokio, over and over: for counting the instructions below which no call gets.
//!
//! `bare_path CALLS SERVERS tcp|unix|udp` makes so many rounds of 100 bytes that each server passes to the next and the last one
//! to the client. Streams carry a length before them; nothing is checked, counted or remembered.

use std::env::args;
use std::io::Result as IoResult;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};

const PAYLOAD: usize = 100;
/// What precedes a payload on a stream.
const PREFIX: usize = 4;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Error> {
    let usage = "usage: bare_path CALLS SERVERS tcp|unix|udp";
    let calls: u32 = args().nth(1).ok_or(usage)?.parse()?;
    let servers: u32 = args().nth(2).ok_or(usage)?.parse()?;
    match args().nth(3).as_deref() {
        Some("udp") => datagrams(calls, servers).await,
        Some("tcp") => over_streams(calls, tcp_pairs(servers + 1).await?).await,
        Some("unix") => {
            let pairs: IoResult<Vec<_>> = (0..=servers).map(|_| UnixStream::pair()).collect();
            over_streams(calls, pairs?).await
        }
        _ => Err(usage.into()),
    }
}

async fn tcp_pairs(count: u32) -> IoResult<Vec<(TcpStream, TcpStream)>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let near = TcpStream::connect(listener.local_addr()?).await?;
        let (far, _) = listener.accept().await?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        pairs.push((near, far));
    }
    Ok(pairs)
}

/// The first pair leads from the client to the first server, and so on; the last one back to the client.
async fn over_streams<S>(calls: u32, pairs: Vec<(S, S)>) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut pairs = pairs.into_iter();
    let (mut first, mut before) = pairs.next().ok_or("no connection")?;
    for (near, far) in pairs {
        tokio::spawn(pass_on(before, near));
        before = far;
    }
    let mut frame = [7; PREFIX + PAYLOAD];
    frame[..PREFIX].copy_from_slice(&u32::try_from(PAYLOAD)?.to_le_bytes());
    let mut buffer = vec![0; 64 * 1024];
    for _ in 0..calls {
        first.write_all(&frame).await?;
        read_frame(&mut before, &mut buffer).await?;
    }
    Ok(())
}

async fn pass_on<S: AsyncRead + AsyncWrite + Unpin>(mut from: S, mut to: S) -> IoResult<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let frame = read_frame(&mut from, &mut buffer).await?;
        to.write_all(frame).await?;
    }
}

/// One frame; as only one is ever under way, nothing is read beyond it.
async fn read_frame<'a>(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &'a mut [u8],
) -> IoResult<&'a [u8]> {
    let mut filled = 0;
    loop {
        let count = from.read(&mut buffer[filled..]).await?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        filled += count;
        if let Some((length, rest)) = buffer[..filled].split_first_chunk::<PREFIX>()
            && rest.len() >= usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX)
        {
            return Ok(&buffer[..filled]);
        }
    }
}

async fn datagrams(calls: u32, servers: u32) -> Result<(), Error> {
    let client = UdpSocket::bind("127.0.0.1:0").await?;
    let mut next = client.local_addr()?;
    for _ in 0..servers {
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        let onward = std::mem::replace(&mut next, socket.local_addr()?);
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let (count, _) = socket.recv_from(&mut buffer).await?;
                socket.send_to(&buffer[..count], onward).await?;
            }
            #[expect(unreachable_code, reason = "the type of the errors above")]
            IoResult::Ok(())
        });
    }
    let mut buffer = vec![7; 64 * 1024];
    for _ in 0..calls {
        client.send_to(&buffer[..PAYLOAD], next).await?;
        client.recv_from(&mut buffer).await?;
    }
    Ok(())
}
