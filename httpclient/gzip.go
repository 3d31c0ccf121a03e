package httpclient

import (
	"io"
	"io/fs"
	"net/http"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// uncompress replaces the body of rsp with one that decompresses it, if it is compressed with gzip. Like
// http.Transport, it then removes the headers that describe the compressed body.
func uncompress(rsp *http.Response) {
	if !isGzip(rsp) {
		return
	}
	rsp.Body = &gzipBody{body: rsp.Body}
	rsp.Header.Del("Content-Encoding")
	rsp.Header.Del("Content-Length")
	rsp.ContentLength, rsp.Uncompressed = -1, true
}

// gzipBody decompresses body, starting with the first Read, because the gzip header may not have arrived
// earlier.
type gzipBody struct {
	body io.ReadCloser

	mu   sync.Mutex // held by a Read, so that Close does not give back a reader in use
	zip  *gzip.Reader
	err  error
	shut bool // Close was called
}

// gzipReaders keeps the readers for later responses, because each has large buffers.
var gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }} //nolint:gochecknoglobals // a pool

// Read decompresses into p. After an error it returns the same error, and after Close fs.ErrClosed.
func (g *gzipBody) Read(p []byte) (n int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.shut:
		return 0, fs.ErrClosed
	case g.err != nil:
		return 0, g.err
	// The first Read: the gzip header may have arrived now.
	case g.zip == nil:
		g.zip, _ = gzipReaders.Get().(*gzip.Reader)
		err = g.zip.Reset(g.body)
	}
	if err == nil {
		n, err = g.zip.Read(p)
	}
	if g.err = err; err != nil {
		g.release()
	}
	return n, err
}

// release returns the gzip reader to the pool, for another body. The caller holds mu, and g.zip is
// not nil.
func (g *gzipBody) release() {
	gzipReaders.Put(g.zip)
	g.zip = nil
}

// Close closes the response body. A Read in progress then ends with an error.
func (g *gzipBody) Close() error {
	// First, so that a Read in progress ends and gives up mu.
	err := g.body.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut = true; g.zip != nil {
		g.release()
	}
	return err
}
