package meters

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes is the maximum number of concurrent scrapes. A scrape uses memory for a copy
// of all series, until the client has read the response.
const maxScrapes = 8

// Handler returns a handler that exports the metrics as Prometheus text. The last line is
// "# EOF". The text is compressed if the client accepts gzip. More than eight concurrent
// requests are rejected with 503 and Retry-After. The server must set a write deadline,
// because otherwise clients that do not read could block all scrapes.
func (m *Meters) Handler() http.Handler {
	// promhttp would choose other formats, and compress before the last line.
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
		plain := r.Clone(r.Context())
		plain.Header.Del("Accept")
		out := &response{ResponseWriter: w, body: w}
		w.Header().Set("Vary", "Accept-Encoding")
		if acceptsGzip(r.Header) {
			zip := gzip.NewWriter(w)
			defer zip.Close()
			w.Header().Set("Content-Encoding", "gzip")
			out.body = zip
		}
		text.ServeHTTP(out, plain)
		_, _ = io.WriteString(out, "# EOF\n")
	})
}

// acceptsGzip reports whether the header Accept-Encoding allows gzip. An entry for gzip
// takes precedence over an entry for "*".
func acceptsGzip(h http.Header) bool {
	takes := false
	for part := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		coding, quality, _ := strings.Cut(part, ";")
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(quality), "q="), 64)
		wanted := quality == "" || err == nil && q > 0
		switch coding = strings.TrimSpace(coding); {
		case strings.EqualFold(coding, "gzip"):
			return wanted
		case coding == "*":
			takes = wanted
		}
	}
	return takes
}

// response is a ResponseWriter that writes the body to another writer, such as a
// compressor.
type response struct {
	http.ResponseWriter
	body io.Writer
}

func (r *response) Write(p []byte) (int, error) { return r.body.Write(p) }

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }
