package main

import (
	"mime"
	"net/http"
	"slices"

	"github.com/klauspost/compress/gzhttp"

	"github.com/gotower/gotower/examples/gateway/config"
)

// compressible are the content types that are compressed by default. Event streams are
// not, because their headers would wait for the first event.
var compressible = []string{ //nolint:gochecknoglobals // constant
	"text/css", "text/csv", "text/html", "text/javascript", "text/markdown", "text/plain", "text/xml",
	"application/javascript", "application/json", "application/problem+json", "application/xml", "image/svg+xml",
}

// compressed returns a handler that compresses the responses of next by package gzhttp.
func compressed(c *config.Compression, next http.Handler) (http.Handler, error) {
	types := c.ContentTypes
	if len(types) == 0 {
		types = compressible
	}
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(c.MinBytes), gzhttp.ContentTypes(types), gzhttp.EnableZstd(true))
	if err != nil {
		return nil, err
	}
	return wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&selective{ResponseWriter: w, types: types}, r)
	})), nil
}

// selective passes responses of other types by the compressing writer, which would keep their
// headers until the first byte of the body.
type selective struct {
	http.ResponseWriter

	types []string
}

// WriteHeader selects the writer by the content type.
func (s *selective) WriteHeader(status int) {
	if status >= http.StatusOK {
		kind, _, _ := mime.ParseMediaType(s.Header().Get("Content-Type"))
		direct, ok := s.ResponseWriter.(interface{ Unwrap() http.ResponseWriter })
		if ok && !slices.Contains(s.types, kind) {
			s.ResponseWriter = direct.Unwrap()
		}
	}
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap is used by [http.ResponseController].
func (s *selective) Unwrap() http.ResponseWriter { return s.ResponseWriter }
