/* The C side of library.rs, by libtirpc: what rpcgen would write for a procedure that answers with what it got, and for one
 * that answers with nothing.
 *
 * Buffers have libtirpc's own sizes where 0 bytes are asked for. Nothing is registered with rpcbind: the ports are known. */

#include <netinet/in.h>
#include <rpc/rpc.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>

enum { PROGRAM = 0x20000bec, VERSION = 1, PASS = 1, TAKE = 2, LARGEST = 2 << 20 };

struct payload {
    char *bytes;
    u_int length;
    u_int most; /* a longer one is an error */
};

static bool_t xdr_payload(XDR *xdr, struct payload *payload) {
    return xdr_bytes(xdr, &payload->bytes, &payload->length, payload->most);
}

static void dispatch(struct svc_req *request, SVCXPRT *transport) {
    struct payload payload = {NULL, 0, LARGEST};
    if (request->rq_proc == NULLPROC) {
        svc_sendreply(transport, (xdrproc_t)xdr_void, NULL);
        return;
    }
    if (request->rq_proc != PASS && request->rq_proc != TAKE) {
        svcerr_noproc(transport);
        return;
    }
    if (!svc_getargs(transport, (xdrproc_t)xdr_payload, (caddr_t)&payload)) {
        svcerr_decode(transport);
        return;
    }
    if (!(request->rq_proc == PASS ? svc_sendreply(transport, (xdrproc_t)xdr_payload, (caddr_t)&payload)
                                   : svc_sendreply(transport, (xdrproc_t)xdr_void, NULL)))
        svcerr_systemerr(transport);
    svc_freeargs(transport, (xdrproc_t)xdr_payload, (caddr_t)&payload);
}

/* Serves on a socket that is bound, and listens if it is a stream; returns only if it fails. */
void relay_onc_serve(int fd, int is_stream, uint32_t buffer) {
    SVCXPRT *transport = is_stream ? svc_vc_create(fd, buffer, buffer) : svc_dg_create(fd, buffer, buffer);
    if (transport && svc_reg(transport, PROGRAM, VERSION, dispatch, NULL))
        svc_run();
}

/* A client over a socket, connected if it is a stream, which it takes over; NULL if that fails. */
CLIENT *relay_onc_open(int fd, uint16_t port, int is_stream, uint32_t buffer) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct netbuf to = {.maxlen = sizeof address, .len = sizeof address, .buf = &address};
    CLIENT *client;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client = is_stream ? clnt_vc_create(fd, &to, PROGRAM, VERSION, buffer, buffer)
                       : clnt_dg_create(fd, &to, PROGRAM, VERSION, buffer, buffer);
    if (client)
        clnt_control(client, CLSET_FD_CLOSE, NULL);
    return client;
}

/* Calls; what comes back is written to `answer`, which has room for `room` bytes, its length to `length`. 0, or what
 * failed as an enum clnt_stat. */
int relay_onc_call(CLIENT *client, char *bytes, uint32_t count, char *answer, uint32_t room, uint32_t *length) {
    struct timeval patience = {.tv_sec = 30};
    struct payload request = {bytes, count, count};
    struct payload response = {answer, 0, room}; /* decoded into memory that is there */
    int status = clnt_call(client, PASS, (xdrproc_t)xdr_payload, (caddr_t)&request, (xdrproc_t)xdr_payload,
                           (caddr_t)&response, patience);
    *length = response.length;
    return status;
}

/* Calls with an argument that is answered by nothing. 0, or what failed as an enum clnt_stat. */
int relay_onc_take(CLIENT *client, char *bytes, uint32_t count) {
    struct timeval patience = {.tv_sec = 30};
    struct payload request = {bytes, count, count};
    return clnt_call(client, TAKE, (xdrproc_t)xdr_payload, (caddr_t)&request, (xdrproc_t)xdr_void, NULL, patience);
}

const char *relay_onc_error(int status) {
    return clnt_sperrno((enum clnt_stat)status);
}

void relay_onc_close(CLIENT *client) {
    clnt_destroy(client);
}
