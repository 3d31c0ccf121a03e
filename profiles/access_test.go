package profiles_test

import (
	"iter"
	"maps"
	"net/netip"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// A protocol for tests: requests and replies are plain structs.

type request struct {
	method, path string
	contentType
}

type reply struct {
	status          int
	from            string // the authority that served it
	route           *layer.Route
	header, trailer fields

	// With open set, the reply ends when end is called; otherwise at once.
	open bool
	end  func(err error)
}

type fields map[string]string

func (f fields) Get(name string) string         { return f[strings.ToLower(name)] }
func (f fields) All() iter.Seq2[string, string] { return maps.All(f) }

func (f fields) Values(name string) []string {
	if value, ok := f[strings.ToLower(name)]; ok {
		return []string{value}
	}
	return nil
}

// contentType is a request's only header field.
type contentType string

func (c contentType) All() iter.Seq2[string, string] {
	return maps.All(fields{"content-type": string(c)})
}

func (c contentType) Values(name string) []string {
	return fields{"content-type": string(c)}.Values(name)
}

func (c contentType) Get(name string) string {
	if strings.EqualFold(name, "content-type") {
		return string(c)
	}
	return ""
}

type access struct{}

func (access) Method(r request) string               { return r.method }
func (access) Scheme(request) string                 { return "http" }
func (access) Authority(request) string              { return "web:80" }
func (access) Path(r request) string                 { return r.path }
func (access) Query(request) string                  { return "" }
func (access) Source(request) netip.AddrPort         { return netip.AddrPort{} }
func (access) RequestHeader(r request) layer.Header  { return r.contentType }
func (access) Status(r *reply) int                   { return r.status }
func (access) ResponseHeader(r *reply) layer.Header  { return r.header }
func (access) ResponseTrailer(r *reply) layer.Header { return r.trailer }

type (
	service = layer.Service[request, *reply]
	handler = layer.Func[request, *reply]
	router  = profiles.Router[request, *reply]
	option  = profiles.Option[request, *reply]
)
