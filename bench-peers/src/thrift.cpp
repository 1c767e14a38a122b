// Thrift's side of on_thrift.rs: a threaded server, and a client whose two halves may be used by two threads.
//
// No exception leaves a function here: what failed comes back as text, good until the thread's next call.

#include "Relay.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/server/TThreadedServer.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerSocket.h>
#include <thrift/transport/TSocket.h>

using namespace apache::thrift;
using protocol::TBinaryProtocol;
using protocol::TBinaryProtocolFactory;
using std::make_shared;
using std::shared_ptr;
using transport::TBufferedTransport;
using transport::TServerSocket;
using transport::TSocket;

namespace {

// Thrift's own size, 512 bytes, takes a hundred reads for a payload of 64 KiB.
constexpr uint32_t BUFFER = 64 * 1024;

// Thrift's limit for a message (100 MiB) is counted down over all messages of a buffered transport, and then ends the
// connection (THRIFT-5492). Here it begins anew with each message, as it is meant.
class Buffered : public TBufferedTransport {
public:
  explicit Buffered(shared_ptr<transport::TTransport> socket) : TBufferedTransport(socket, BUFFER) {}

  uint32_t readEnd() override {
    resetConsumedMessageSize();
    return TBufferedTransport::readEnd();
  }
};

class BufferedFactory : public transport::TTransportFactory {
public:
  shared_ptr<transport::TTransport> getTransport(shared_ptr<transport::TTransport> socket) override {
    return make_shared<Buffered>(socket);
  }
};

class Answer : public RelayIf {
  void echo(std::string& answer, const std::string& payload) override { answer = payload; }
};

// Says where the server listens as soon as it does.
class Announce : public server::TServerEventHandler {
public:
  Announce(shared_ptr<TServerSocket> socket, void (*listening)(uint16_t))
    : socket_(std::move(socket)), listening_(listening) {}

  void preServe() override { listening_(static_cast<uint16_t>(socket_->getPort())); }

private:
  shared_ptr<TServerSocket> socket_;
  void (*listening_)(uint16_t);
};

shared_ptr<TBinaryProtocol> protocol_over(int fd, int timeout_ms) {
  auto socket = make_shared<TSocket>(fd);
  socket->setRecvTimeout(timeout_ms);
  socket->setSendTimeout(timeout_ms);
  return make_shared<TBinaryProtocol>(make_shared<Buffered>(socket));
}

struct Client {
  Client(int read_fd, int write_fd, int timeout_ms)
    : relay(protocol_over(read_fd, timeout_ms), protocol_over(write_fd, timeout_ms)) {}

  RelayClient relay;
  std::string request; // of the thread that sends
  std::string answer;  // of the thread that receives
};

template <typename Work>
const char* guarded(Work work) {
  thread_local std::string text;
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an unknown exception";
  }
  return text.c_str();
}

} // namespace

extern "C" {

// Serves on a port of its choice, which it hands to `listening`; returns only if it fails.
const char* relay_thrift_serve(void (*listening)(uint16_t)) {
  return guarded([&] {
    auto socket = make_shared<TServerSocket>("127.0.0.1", 0);
    server::TThreadedServer server(make_shared<RelayProcessor>(make_shared<Answer>()), socket,
                                   make_shared<BufferedFactory>(),
                                   make_shared<TBinaryProtocolFactory>());
    server.setServerEventHandler(make_shared<Announce>(socket, listening));
    server.serve();
  });
}

// Takes over two descriptors of one connection.
const char* relay_thrift_open(int read_fd, int write_fd, int timeout_ms, Client** client) {
  return guarded([&] { *client = new Client(read_fd, write_fd, timeout_ms); });
}

const char* relay_thrift_send(Client* client, const char* payload, size_t length) {
  return guarded([&] {
    client->request.assign(payload, length);
    client->relay.send_echo(client->request);
  });
}

// The answer is good until the next one is received.
const char* relay_thrift_receive(Client* client, const char** answer, size_t* length) {
  return guarded([&] {
    client->relay.recv_echo(client->answer);
    *answer = client->answer.data();
    *length = client->answer.size();
  });
}

void relay_thrift_close(Client* client) {
  delete client;
}
}
