/* TLS 1.3 by OpenSSL, in memory only; channel.c does the work on the socket (tls.h). */
#include "fabric/net/tls.h"
#include "base/error.h"
#include "farindex.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef FARINDEX_TLS

#include <openssl/err.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#define SECRET_MOST 4096
#define IDENTITY                                                                                                       \
    "farindex"           /* identity in protocol 3; accepted so that such a client gets a message about its version */
#define IDENTITY_BYTES 8 /* bytes of a hash of the key that are its identity, written as hexadecimal digits */
#define CIPHER         "TLS_AES_128_GCM_SHA256"
#define BYTES_PER_CALL (256 << 10)

/* A pre-shared key, and the identity by which a client names it. */
typedef struct shared_key {
    unsigned char bytes[SHA256_DIGEST_LENGTH];
    char identity[2 * IDENTITY_BYTES + 1];
} shared_key;

struct net_tls_context {
    SSL_CTX *ssl;
    bool server, with_key, with_read_key;
    shared_key key, read_key;
};

struct net_tls {
    SSL *ssl;
    const net_tls_context *context;
    bool peer_reads_only;
    char why[160];
};


static int fail_with_openssl(const char *what) {
    char text[120];
    ERR_error_string_n(ERR_peek_last_error(), text, sizeof(text));
    ERR_clear_error();
    return far_fail(FAR_ERR_INVALID, "%s: %s", what, text);
}


/* ---- The pre-shared key ---- */

/* The identity is a hash of the key, so that a server with two keys knows which of them the client uses. */
static void make_identity(shared_key *key) {
    static const char label[] = "farindex key identity 1";
    unsigned char text[sizeof(label) + sizeof(key->bytes)], hash[SHA256_DIGEST_LENGTH];
    memcpy(text, label, sizeof(label));
    memcpy(text + sizeof(label), key->bytes, sizeof(key->bytes));
    SHA256(text, sizeof(text), hash);
    for (unsigned i = 0; i < IDENTITY_BYTES; i++)
        snprintf(key->identity + 2 * i, 3, "%02x", hash[i]);
    OPENSSL_cleanse(text, sizeof(text));
}


/* Reads the secret file and derives the key. The key is a hash of the file, so that the secret may have any length. */
static int read_secret(const char *path, shared_key *key) {
    static const char label[] = "farindex pre-shared key 1";
    unsigned char text[sizeof(label) + SECRET_MOST + 1];
    struct stat status;
    FILE *file = fopen(path, "re");
    if (!file)
        return far_fail(FAR_ERR_INVALID, "secret: %s cannot be opened: %s", path, strerror(errno));
    size_t length = 0;
    int err = 0;
    memcpy(text, label, sizeof(label));
    if (fstat(fileno(file), &status) < 0 || !S_ISREG(status.st_mode))
        err = far_fail(FAR_ERR_INVALID, "secret: %s is not a file", path);
    else if (status.st_mode & (S_IRWXG | S_IRWXO))
        err = far_fail(FAR_ERR_INVALID, "secret: other users than its owner can read %s (chmod 600)", path);
    else
        length = fread(text + sizeof(label), 1, SECRET_MOST + 1, file);
    fclose(file);
    if (!err && length < NET_SECRET_LEAST)
        err = far_fail(FAR_ERR_INVALID, "secret: %s has %zu bytes, at least %d are needed", path, length,
                       NET_SECRET_LEAST);
    if (!err && length > SECRET_MOST)
        err = far_fail(FAR_ERR_INVALID, "secret: %s has more than %d bytes", path, SECRET_MOST);
    if (!err) {
        SHA256(text, sizeof(label) + length, key->bytes);
        make_identity(key);
    }
    OPENSSL_cleanse(text, sizeof(text));
    return err;
}


static SSL_SESSION *make_psk_session(SSL *ssl, const shared_key *key) {
    /* 0x1301 is the number of CIPHER in the TLS protocol */
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, (const unsigned char *)"\x13\x01");
    SSL_SESSION *session = SSL_SESSION_new();
    if (session && cipher && SSL_SESSION_set1_master_key(session, key->bytes, sizeof(key->bytes)) &&
        SSL_SESSION_set_cipher(session, cipher) && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}


static int offer_psk(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_length, SSL_SESSION **session) {
    const net_tls_context *context = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    (void)md;
    *id = (const unsigned char *)context->key.identity;
    *id_length = strlen(context->key.identity);
    *session = make_psk_session(ssl, &context->key);
    return *session != NULL;
}


static bool identity_is(const char *wanted, const unsigned char *id, size_t id_length) {
    return id_length == strlen(wanted) && memcmp(id, wanted, id_length) == 0;
}


/* Finds the key that the client names. If the client does not prove that it has this key, the handshake fails. */
static int find_psk(SSL *ssl, const unsigned char *id, size_t id_length, SSL_SESSION **session) {
    const net_tls_context *context = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    net_tls *tls = SSL_get_app_data(ssl);
    *session = NULL;
    tls->peer_reads_only = context->with_read_key && identity_is(context->read_key.identity, id, id_length);
    if (tls->peer_reads_only)
        *session = make_psk_session(ssl, &context->read_key);
    else if (identity_is(context->key.identity, id, id_length) || identity_is(IDENTITY, id, id_length))
        *session = make_psk_session(ssl, &context->key);
    return 1;
}


/* Configures authentication by the pre-shared key. Suppose that a server has no key and presents a certificate instead:
 * the handshake fails, because the client trusts no certificate. Our server has no certificate, so only a handshake
 * with the key can succeed. check_peer verifies on both sides that the key was used. */
static int use_secrets(net_tls_context *context, const net_tls_config *config) {
    int err = read_secret(config->secret, &context->key);
    context->with_read_key = config->read_secret != NULL;
    if (err == 0 && context->with_read_key)
        err = read_secret(config->read_secret, &context->read_key);
    if (err == 0 && context->with_read_key &&
        CRYPTO_memcmp(context->key.bytes, context->read_key.bytes, sizeof(context->key.bytes)) == 0)
        err = far_fail(FAR_ERR_INVALID, "read secret: %s is the same as the secret, with which clients may write",
                       config->read_secret);
    if (err < 0)
        return err;
    context->with_key = true;
    if (context->server) {
        SSL_CTX_set_psk_find_session_callback(context->ssl, find_psk);
    } else {
        SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER, NULL);
        SSL_CTX_set_psk_use_session_callback(context->ssl, offer_psk);
    }
    return 0;
}


/* ---- Certificates ---- */

/* Checks the file before OpenSSL does, because OpenSSL's message for a missing file does not help users. */
static int check_readable(const char *what, const char *path) {
    return access(path, R_OK) == 0
               ? 0
               : far_fail(FAR_ERR_INVALID, "%s: %s cannot be opened: %s", what, path, strerror(errno));
}


static int use_certificates(net_tls_context *context, const net_tls_config *config) {
    struct stat status;
    if (!config->cert || !config->key || !config->ca)
        return far_fail(FAR_ERR_INVALID, "cert, key and ca must be given together");
    if (check_readable("cert", config->cert) < 0 || check_readable("key", config->key) < 0 ||
        check_readable("ca", config->ca) < 0)
        return FAR_ERR_INVALID;
    if (stat(config->key, &status) == 0 && (status.st_mode & (S_IRWXG | S_IRWXO)))
        return far_fail(FAR_ERR_INVALID, "key: other users than its owner can read %s (chmod 600)", config->key);
    if (SSL_CTX_use_certificate_chain_file(context->ssl, config->cert) != 1)
        return fail_with_openssl(config->cert);
    if (SSL_CTX_use_PrivateKey_file(context->ssl, config->key, SSL_FILETYPE_PEM) != 1)
        return fail_with_openssl(config->key);
    if (SSL_CTX_load_verify_file(context->ssl, config->ca) != 1)
        return fail_with_openssl(config->ca);
    SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return 0;
}


static int configure_context(net_tls_context *context, const net_tls_config *config) {
    context->ssl = SSL_CTX_new(context->server ? TLS_server_method() : TLS_client_method());
    if (!context->ssl)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for TLS");
    SSL_CTX_set_app_data(context->ssl, context);
    SSL_CTX_set_min_proto_version(context->ssl, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context->ssl, CIPHER);
    SSL_CTX_set_session_cache_mode(context->ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context->ssl, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_num_tickets(context->ssl, 0);
    /* early data can be replayed, and a replayed FAA would be applied twice */
    SSL_CTX_set_max_early_data(context->ssl, 0);
    SSL_CTX_set_mode(context->ssl,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    return config->secret ? use_secrets(context, config) : use_certificates(context, config);
}


int net_tls_open(const net_tls_config *config, bool server, net_tls_context **opened) {
    *opened = NULL;
    if (config->read_secret && !config->secret)
        return far_fail(FAR_ERR_INVALID, "a read secret needs a secret, too");
    if (!config->secret && !config->cert && !config->key && !config->ca)
        return 0;
    if (config->secret && (config->cert || config->key || config->ca))
        return far_fail(FAR_ERR_INVALID, "give either a secret or certificates, not both");
    net_tls_context *context = calloc(1, sizeof(*context));
    if (!context)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for TLS");
    context->server = server;
    int err = configure_context(context, config);
    if (err < 0) {
        net_tls_close(context);
        return err;
    }
    *opened = context;
    return 0;
}


void net_tls_close(net_tls_context *context) {
    if (!context)
        return;
    SSL_CTX_free(context->ssl);
    OPENSSL_cleanse(&context->key, sizeof(context->key));
    OPENSSL_cleanse(&context->read_key, sizeof(context->read_key));
    free(context);
}


/* ---- Sessions ---- */

static bool set_expected_host(SSL *ssl, const char *host) {
    if (SSL_set_tlsext_host_name(ssl, host) != 1)
        return false;
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1)
        return true;
    ERR_clear_error();
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1;
}


net_tls *net_tls_new(net_tls_context *context, const char *host) {
    net_tls *tls = calloc(1, sizeof(*tls));
    if (!tls)
        return NULL;
    tls->context = context;
    tls->ssl = SSL_new(context->ssl);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    if (!tls->ssl || !in || !out) {
        BIO_free(in);
        BIO_free(out);
        net_tls_free(tls);
        return NULL;
    }
    SSL_set_bio(tls->ssl, in, out);
    SSL_set_app_data(tls->ssl, tls);
    if (context->server)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    if (!context->server && !context->with_key && !set_expected_host(tls->ssl, host)) {
        net_tls_free(tls);
        return NULL;
    }
    return tls;
}


void net_tls_free(net_tls *tls) {
    if (!tls)
        return;
    SSL_free(tls->ssl);
    free(tls);
}


size_t net_tls_put_received(net_tls *tls, const char *raw, size_t bytes) {
    BIO *in = SSL_get_rbio(tls->ssl);
    if (bytes == 0 || BIO_ctrl_pending(in) >= BYTES_PER_CALL)
        return 0;
    int put = BIO_write(in, raw, (int)(bytes < BYTES_PER_CALL ? bytes : BYTES_PER_CALL));
    return put > 0 ? (size_t)put : 0;
}


/* Returns the most likely cause of a failed handshake, where the reason of OpenSSL does not help users; NULL: no better
 * text is known. */
static const char *likely_cause(const net_tls *tls, int reason) {
    bool with_key = tls->context->with_key;
    if (reason == SSL_R_WRONG_VERSION_NUMBER)
        return "the other side does not use TLS: does it lack the secret or certificate?";
    if (with_key && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
        return "the other side uses a certificate: does it lack the secret?";
    if (with_key && !SSL_is_init_finished(tls->ssl))
        return "do both sides have the same secret?";
    if (!with_key && reason >= SSL_AD_REASON_OFFSET) /* true if the failure is an alert that the other side has sent */
        return "does the other side reject this certificate?";
    return NULL;
}


static int fail_session(net_tls *tls) {
    unsigned long code = ERR_peek_last_error();
    const char *reason = ERR_reason_error_string(code), *hint = likely_cause(tls, ERR_GET_REASON(code));
    long verified = SSL_get_verify_result(tls->ssl);
    if (hint)
        snprintf(tls->why, sizeof(tls->why), "the TLS handshake failed: %s (%s)", hint, reason ? reason : "closed");
    else if (verified != X509_V_OK)
        snprintf(tls->why, sizeof(tls->why), "the TLS handshake failed: %s", X509_verify_cert_error_string(verified));
    else
        snprintf(tls->why, sizeof(tls->why), "TLS failed: %s", reason ? reason : "closed");
    ERR_clear_error();
    return -1;
}


/* Examines the result of an OpenSSL call that returned no bytes. Returns 0 if the call only needs more bytes, -1 if it
 * failed. */
static int check_openssl_result(net_tls *tls, int result) {
    int error = SSL_get_error(tls->ssl, result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : fail_session(tls);
}


/* Returns -1 if the handshake is complete but did not use the pre-shared key that this side requires. */
static int check_peer(net_tls *tls) {
    if (SSL_is_init_finished(tls->ssl) && tls->context->with_key && !SSL_session_reused(tls->ssl)) {
        snprintf(tls->why, sizeof(tls->why), "the TLS handshake failed: the peer did not use the secret");
        return -1;
    }
    return 0;
}


int net_tls_decrypt(net_tls *tls, char *to, size_t room) {
    ERR_clear_error();
    int got = SSL_read(tls->ssl, to, (int)(room < BYTES_PER_CALL ? room : BYTES_PER_CALL));
    if (check_peer(tls) < 0)
        return -1;
    return got > 0 ? got : check_openssl_result(tls, got);
}


int net_tls_encrypt(net_tls *tls, const char *from, size_t bytes) {
    ERR_clear_error();
    if (!SSL_is_init_finished(tls->ssl)) {
        int done = SSL_do_handshake(tls->ssl);
        if (done != 1)
            return check_openssl_result(tls, done);
    }
    if (check_peer(tls) < 0)
        return -1;
    int put = SSL_write(tls->ssl, from, (int)(bytes < BYTES_PER_CALL ? bytes : BYTES_PER_CALL));
    return put > 0 ? put : check_openssl_result(tls, put);
}


size_t net_tls_encrypted_bytes(const net_tls *tls) {
    return BIO_ctrl_pending(SSL_get_wbio(tls->ssl));
}


size_t net_tls_take_encrypted(net_tls *tls, char *to, size_t room) {
    int got = BIO_read(SSL_get_wbio(tls->ssl), to, (int)room);
    return got > 0 ? (size_t)got : 0;
}


bool net_tls_handshake_is_done(const net_tls *tls) {
    return SSL_is_init_finished(tls->ssl);
}


bool net_tls_peer_reads_only(const net_tls *tls) {
    return tls->peer_reads_only;
}


const char *net_tls_error(const net_tls *tls) {
    return tls->why;
}

#else /* a build without OpenSSL: no session is ever created */

int net_tls_open(const net_tls_config *config, bool server, net_tls_context **opened) {
    (void)server;
    *opened = NULL;
    if (!config->secret && !config->cert && !config->key && !config->ca && !config->read_secret)
        return 0;
    return far_fail(FAR_ERR_UNSUPPORTED, "this build has no TLS because it was made without OpenSSL (libssl-dev)");
}


void net_tls_close(net_tls_context *context) {
    (void)context;
}


net_tls *net_tls_new(net_tls_context *context, const char *host) {
    (void)context, (void)host;
    return NULL;
}


void net_tls_free(net_tls *tls) {
    (void)tls;
}


size_t net_tls_put_received(net_tls *tls, const char *raw, size_t bytes) {
    (void)tls, (void)raw, (void)bytes;
    return 0;
}


int net_tls_decrypt(net_tls *tls, char *to, size_t room) {
    (void)tls, (void)to, (void)room;
    return -1;
}


int net_tls_encrypt(net_tls *tls, const char *from, size_t bytes) {
    (void)tls, (void)from, (void)bytes;
    return -1;
}


size_t net_tls_encrypted_bytes(const net_tls *tls) {
    (void)tls;
    return 0;
}


size_t net_tls_take_encrypted(net_tls *tls, char *to, size_t room) {
    (void)tls, (void)to, (void)room;
    return 0;
}


bool net_tls_handshake_is_done(const net_tls *tls) {
    (void)tls;
    return false;
}


bool net_tls_peer_reads_only(const net_tls *tls) {
    (void)tls;
    return false;
}


const char *net_tls_error(const net_tls *tls) {
    (void)tls;
    return "no TLS";
}

#endif
