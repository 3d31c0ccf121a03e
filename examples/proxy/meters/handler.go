package meters

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes limits concurrent scrapes. Each holds a copy of all series in memory until the client
// has read the response.
const maxScrapes = 8

// Handler returns a handler that exports the metrics as Prometheus text, with gzip if the client
// accepts it. The last line is "# EOF". More than eight concurrent requests are rejected with 503
// and Retry-After. The server should set a write deadline, because clients that do not read could
// otherwise block all scrapes.
func (m *Meters) Handler() http.Handler {
	// Otherwise promhttp chooses other formats, and ends the compressed body before the last line.
	text := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{DisableCompression: true})
	scrapes := make(chan struct{}, maxScrapes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case scrapes <- struct{}{}:
			defer func() { <-scrapes }()
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many scrapes at a time", http.StatusServiceUnavailable)
			return
		}
		// The handler is always asked for plain text. Compression is done here.
		plain := r.Clone(r.Context())
		plain.Header.Del("Accept")
		rsp := &response{ResponseWriter: w, body: w}
		w.Header().Set("Vary", "Accept-Encoding")
		if acceptsGzip(r.Header) {
			// Close writes the end of the compressed body, after the last line.
			zip := gzip.NewWriter(w)
			defer zip.Close()
			w.Header().Set("Content-Encoding", "gzip")
			rsp.body = zip
		}
		text.ServeHTTP(rsp, plain)
		// OpenMetrics ends with this line, so a client can tell a complete response from one that was cut off.
		_, _ = io.WriteString(rsp, "# EOF\n")
	})
}

// acceptsGzip reports whether Accept-Encoding allows gzip. An entry for gzip takes precedence over
// "*".
func acceptsGzip(h http.Header) bool {
	acceptsAny := false
	for entry := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		coding, quality, _ := strings.Cut(entry, ";")
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(quality), "q="), 64)
		// An entry without a quality, or with one above 0, allows the coding.
		accepted := quality == "" || err == nil && q > 0
		switch coding = strings.TrimSpace(coding); {
		case strings.EqualFold(coding, "gzip"):
			// gzip itself decides, even if "*" says otherwise.
			return accepted
		case coding == "*":
			acceptsAny = accepted
		}
	}
	return acceptsAny
}

// response is a ResponseWriter whose body goes to another writer, such as a compressor.
type response struct {
	http.ResponseWriter
	body io.Writer
}

func (r *response) Write(p []byte) (int, error) { return r.body.Write(p) }

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }
