package profiles_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/profiles"
)

type (
	kitRequest  = *layertest.Request
	kitResponse = *layertest.Response
	kitService  = layer.Service[kitRequest, kitResponse]
	kitOption   = profiles.Option[kitRequest, kitResponse]
)

// kitAccess reads the messages of layertest.
type kitAccess struct{}

func (kitAccess) Method(kitRequest) string                  { return "GET" }
func (kitAccess) Scheme(kitRequest) string                  { return "http" }
func (kitAccess) Authority(kitRequest) string               { return "" }
func (kitAccess) Path(kitRequest) string                    { return "/" }
func (kitAccess) Query(kitRequest) string                   { return "" }
func (kitAccess) Source(kitRequest) netip.AddrPort          { return netip.AddrPort{} }
func (kitAccess) RequestHeader(r kitRequest) layer.Header   { return fields(r.Header) }
func (kitAccess) Status(kitResponse) int                    { return 200 }
func (kitAccess) ResponseHeader(r kitResponse) layer.Header { return fields(r.Header) }
func (kitAccess) ResponseTrailer(kitResponse) layer.Header  { return fields(nil) }

// A Router keeps the contract of a layer with any profile. Every target is the kit's
// inner service.
func TestConforms(t *testing.T) {
	pass := profiles.WithPerRoute(func(_ profiles.Route, next kitService) kitService {
		return layer.NewStack[kitRequest, kitResponse]().Service(next)
	})
	all := profiles.Route{Name: "all", Match: profiles.All{profiles.Method("GET"), profiles.Path("/")}}
	for _, tt := range []struct {
		what        string
		profile     *profiles.Profile
		opts        []kitOption
		transparent bool
	}{
		{"default", &profiles.Profile{}, nil, true},
		{"a route without labels", &profiles.Profile{Routes: []profiles.Route{{Match: all.Match}}}, nil, true},
		{"a route", &profiles.Profile{Routes: []profiles.Route{all}}, nil, false},
		{"a stack", &profiles.Profile{Routes: []profiles.Route{all}}, []kitOption{pass}, false},
		{"a split", &profiles.Profile{Targets: two}, nil, false},
		{"all of it", &profiles.Profile{Routes: []profiles.Route{all}, Targets: two}, []kitOption{pass}, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			layertest.Run(t, layertest.Layer{
				OutlivesInner: true, // another profile may come
				New: func(ctx context.Context, next kitService) kitService {
					src := newScript()
					config := profiles.Config{Target: target, Source: src}
					r := profiles.New(ctx, config, kitAccess{}, func(string) kitService { return next }, tt.opts...)
					src.send(tt.profile, nil)
					return r
				},
				Transparent: tt.transparent,
			})
		})
	}
}
