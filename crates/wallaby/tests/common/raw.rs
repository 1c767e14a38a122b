//! A peer that does what a test wants: the protocol's connection, driven by hand over a TCP socket.

use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wallaby::{Address, CallId, NodeId, RequestId};
use wallaby_proto::Token;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Charge, Connection, ConnectionLimits, Event, Features, Hello, MethodDefinition, VERSION,
};
use wallaby_proto::wire::{End, Message, MethodRef, ReplyTo, Request, Response};
use wallaby_proto::{Facts, Manifest};

/// What a raw peer says of itself.
pub(crate) fn hello(node: u64) -> Hello {
    Hello {
        versions: (VERSION, VERSION),
        node: NodeId::new(node).expect("not zero"),
        expected: None,
        address: None,
        features: Features::default(),
        limits: ConnectionLimits::default(),
    }
}

pub(crate) struct Raw {
    pub(crate) connection: Connection,
    stream: TcpStream,
    input: BytesMut,
}

impl Raw {
    /// Connects without a handshake.
    pub(crate) async fn connect(server: &Address, hello: Hello) -> Self {
        let Address::Tcp(server) = server else {
            panic!("not TCP: {server}")
        };
        let stream = TcpStream::connect(server).await.expect("it listens");
        Self {
            connection: Connection::dial(Arc::new(hello), None),
            stream,
            input: BytesMut::new(),
        }
    }

    /// Connects and shakes hands.
    pub(crate) async fn dial(server: &Address, hello: Hello) -> Self {
        let mut raw = Self::connect(server, hello).await;
        raw.flush().await;
        assert!(matches!(raw.event().await, Some(Event::Opened(_))));
        raw
    }

    /// Accepts a connection and says who it is, whatever becomes of that.
    pub(crate) async fn accept_any(listener: &TcpListener, hello: Hello) -> Self {
        let (stream, _) = listener.accept().await.expect("somebody dials");
        let connection = Connection::accept(Arc::new(hello));
        let mut raw = Self {
            connection,
            stream,
            input: BytesMut::new(),
        };
        // It may be meant for another life: what it says is written, and no more is read.
        while let Ok(1..) = raw.stream.read_buf(&mut raw.input).await {
            let heard = raw.connection.handle_input(&mut raw.input);
            raw.flush().await;
            if !matches!(heard, Ok(None)) {
                break;
            }
        }
        raw
    }

    /// Accepts a connection and shakes hands.
    pub(crate) async fn accept(listener: &TcpListener, hello: Hello) -> Self {
        let (stream, _) = listener.accept().await.expect("somebody dials");
        let connection = Connection::accept(Arc::new(hello));
        let mut raw = Self {
            connection,
            stream,
            input: BytesMut::new(),
        };
        assert!(matches!(raw.event().await, Some(Event::Opened(_))));
        raw
    }

    /// Sends bytes that need not be right.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        // The server may have closed the connection over an earlier part of them.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Writes what the connection has to say.
    pub(crate) async fn flush(&mut self) {
        loop {
            let output = self.connection.output().to_vec();
            if output.is_empty() {
                return;
            }
            self.send_bytes(&output).await;
            self.connection.advance(output.len());
        }
    }

    pub(crate) async fn send_request(&mut self, mut request: Request, method: &MethodDefinition) {
        self.connection
            .send_request(&mut request, method)
            .expect("there is credit");
        self.flush().await;
    }

    pub(crate) async fn send_response(&mut self, response: Response) {
        self.connection
            .send_response(&response, Charge::Free)
            .expect("it is not too large");
        self.flush().await;
    }

    pub(crate) async fn send(&mut self, message: Message) {
        self.connection
            .send_control(message)
            .expect("the handshake is done");
        self.flush().await;
    }

    /// The next event; `None` when the peer has closed the connection.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self
                .connection
                .handle_input(&mut self.input)
                .expect("the endpoint is no enemy")
            {
                self.flush().await;
                return Some(event);
            }
            if self.connection.peer().is_some() {
                self.flush().await; // parts that have arrived are credited before their message is whole
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The next message; all else is skipped.
    pub(crate) async fn message(&mut self) -> Message {
        loop {
            match self.event().await.expect("a message") {
                Event::Message(message) => return message,
                Event::TooLarge { message, .. } => panic!("too large: {message:?}"),
                _ => {}
            }
        }
    }

    pub(crate) async fn request(&mut self) -> Request {
        match self.message().await {
            Message::Request(request) => request,
            other => panic!("no request: {other:?}"),
        }
    }

    pub(crate) async fn response(&mut self) -> Response {
        match self.message().await {
            Message::Response(response) => response,
            other => panic!("no response: {other:?}"),
        }
    }

    /// Reads to the end of the connection; returns what the peer gave as its reason.
    pub(crate) async fn closed(&mut self) -> Option<String> {
        let mut reason = None;
        while let Some(event) = self.event().await {
            if let Event::Closed(why) = event {
                reason = Some(why);
            }
        }
        reason
    }
}

/// The first request of a call.
pub(crate) fn request(call: CallId, payload: &'static [u8]) -> Request {
    Request {
        call,
        token: Token::new(4711),
        id: RequestId::FIRST,
        depth: 0,
        base: 0,
        reply_to: ReplyTo::Peer,
        manifest: None,
        deadline: None,
        oldest: call.sequence,
        traced: false,
        compressed: false,
        waited: std::time::Duration::ZERO,
        options: None,
        method: MethodRef::Number(0),
        payload: payload.into(),
    }
}

/// The only answer to the first request of a call.
pub(crate) fn response(call: CallId, token: Option<Token>, payload: &'static [u8]) -> Response {
    Response {
        call,
        distance: 0,
        token,
        request: RequestId::FIRST,
        index: 0,
        last: true,
        manifest: None,
        status: false,
        compressed: false,
        options: None,
        payload: payload.into(),
    }
}

/// The end of the first request of a call, which has sent so much.
pub(crate) fn end(call: CallId, requests: u32, responses: u32) -> End {
    let facts = Facts {
        requests,
        responses,
    };
    End {
        call,
        distance: 0,
        token: None,
        request: RequestId::FIRST,
        facts,
        manifest: None,
        options: None,
    }
}

pub(crate) fn manifest(owner: wallaby::Path, requests: u32, responses: u32) -> Manifest {
    Manifest {
        owner,
        facts: Facts {
            requests,
            responses,
        },
    }
}
