package meters

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler shows the metrics as Prometheus' text, with "# EOF" as the last line,
// compressed for who accepts gzip.
func (m *Meters) Handler() http.Handler {
	// It would choose other formats, and compress before the last line.
	text := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{DisableCompression: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

// acceptsGzip reports whether a client takes gzip, by name or as anything.
func acceptsGzip(h http.Header) bool {
	for part := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		coding, quality, _ := strings.Cut(part, ";")
		if coding = strings.TrimSpace(coding); !strings.EqualFold(coding, "gzip") && coding != "*" {
			continue
		}
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(quality), "q="), 64)
		return quality == "" || err == nil && q > 0
	}
	return false
}

// response is a ResponseWriter whose body goes through something else.
type response struct {
	http.ResponseWriter
	body io.Writer
}

func (r *response) Write(p []byte) (int, error) { return r.body.Write(p) }

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }
