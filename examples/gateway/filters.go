package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// A layer of your own embeds the inner service and overrides Call.

// cors returns the layer that applies c, the field cors of a route. It returns nil if c is
// nil. The layer responds to preflight requests. It also adds the headers that allow pages
// of other origins to read responses.
func cors(c *config.CORS) httplayer.Layer {
	if c == nil {
		return nil
	}
	methods := []string{"GET", "HEAD", "POST"}
	if len(c.AllowMethods) > 0 {
		methods = texts(c.AllowMethods)
	}
	return func(next httplayer.Service) httplayer.Service {
		return &corsService{
			Service: next, CORS: c, any: slices.Contains(c.AllowOrigins, "*"),
			methods: strings.Join(methods, ", "), headers: strings.Join(texts(c.AllowHeaders), ", "),
			exposed: strings.Join(texts(c.ExposeHeaders), ", "), maxAge: strconv.Itoa(int(c.MaxAge.D().Seconds())),
		}
	}
}

type corsService struct {
	httplayer.Service
	*config.CORS

	any                               bool
	methods, headers, exposed, maxAge string
}

func (s *corsService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	origin := req.Header.Get("Origin")
	if req.Method == http.MethodOptions && origin != "" && req.Header.Get("Access-Control-Request-Method") != "" {
		return s.preflight(req, origin), nil
	}
	rsp, err := s.Service.Call(ctx, req)
	if err != nil {
		return nil, &corsError{err, s, origin}
	}
	for _, name := range []string{"Origin", "Credentials", "Methods", "Headers"} {
		rsp.Header.Del("Access-Control-Allow-" + name) // the gateway decides
	}
	rsp.Header.Del("Access-Control-Expose-Headers")
	s.allow(rsp.Header, origin)
	return rsp, nil
}

// corsError is an error of a route with CORS. The function problem adds the headers to the response
// that allow a page of the given origin to read it.
type corsError struct {
	error
	cors   *corsService
	origin string
}

func (e *corsError) Unwrap() error { return e.error }

// problem is the [httplayer.ErrorHandler] of the gateway.
func problem(w http.ResponseWriter, r *http.Request, err error) {
	if e, ok := errors.AsType[*corsError](err); ok {
		e.cors.allow(w.Header(), e.origin)
	}
	httplayer.Problem(w, r, err)
}

func (s *corsService) preflight(req *http.Request, origin string) *http.Response {
	rsp := httplayer.Editor{}.NewResponse(req, layer.DirectResponse{Status: http.StatusNoContent})
	if s.allow(rsp.Header, origin) {
		rsp.Header.Set("Access-Control-Allow-Methods", allowed(s.methods, req.Header.Get("Access-Control-Request-Method")))
		rsp.Header.Set("Access-Control-Max-Age", s.maxAge)
		if headers := allowed(s.headers, req.Header.Get("Access-Control-Request-Headers")); headers != "" {
			rsp.Header.Set("Access-Control-Allow-Headers", headers)
		}
	}
	return rsp
}

// allowed returns the value of a CORS response header. This is the argument list, the configured
// value. If list is "*", allowed returns the value that the browser requested, because browsers
// do not support "*" for requests with credentials.
func allowed(list, requested string) string {
	if list == "*" {
		return requested
	}
	return list
}

// allow adds to h the response headers that allow a page of the given origin to use the
// route. It returns false if the origin is not allowed.
func (s *corsService) allow(h http.Header, origin string) bool {
	if s.any {
		origin = "*"
	} else {
		h.Add("Vary", "Origin")
		if !slices.ContainsFunc(s.AllowOrigins, func(o config.Origin) bool { return o.Matches(origin) }) {
			return false
		}
	}
	h.Set("Access-Control-Allow-Origin", origin)
	if s.AllowCredentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if s.exposed != "" {
		h.Set("Access-Control-Expose-Headers", s.exposed)
	}
	return true
}

// externalAuth returns the layer that applies e, the field externalAuth of a route. It
// returns nil if e is nil. For each request, the layer calls the argument service to find
// out whether the request is allowed.
func externalAuth(e *config.ExternalAuth, service httplayer.Service) httplayer.Layer {
	if e == nil {
		return nil
	}
	asked := httplayer.NewStack(httplayer.WithTarget(string(e.BackendRef.Name))).
		ResponseHeaderTimeout(e.Timeout.D()).
		Service(service)
	return func(next httplayer.Service) httplayer.Service {
		return &authService{Service: next, ExternalAuth: e, asked: asked}
	}
}

type authService struct {
	httplayer.Service
	*config.ExternalAuth

	asked httplayer.Service
}

func (s *authService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	question, err := s.question(ctx, req)
	if err != nil {
		return nil, err
	}
	answer, err := s.asked.Call(ctx, question)
	switch {
	case err != nil && ctx.Err() != nil: // the client canceled the request, for example
		return nil, err
	case err != nil:
		return nil, &httplayer.StatusError{Code: http.StatusServiceUnavailable, Reason: fmt.Sprintf("external auth: %v", err)}
	case answer.StatusCode/100 != 2:
		return answer, nil
	}
	httplayer.Replayer{}.Drain(answer)
	allowed := *req
	allowed.Header = req.Header.Clone()
	for _, name := range s.AllowedResponseHeaders {
		same := dashes(string(name)) // some services treat X_User as X-User
		maps.DeleteFunc(allowed.Header, func(field string, _ []string) bool { return strings.EqualFold(dashes(field), same) })
		for _, value := range answer.Header.Values(string(name)) {
			allowed.Header.Add(string(name), value)
		}
	}
	return s.Service.Call(ctx, &allowed)
}

func dashes(name string) string { return strings.ReplaceAll(name, "_", "-") }

// question returns the GET request that asks the service of externalAuth whether req is
// allowed.
func (s *authService) question(ctx context.Context, req *http.Request) (*http.Request, error) {
	a := httplayer.Accessor{}
	url := "http://" + a.Authority(req) + string(s.Path)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) //nolint:gosec // the authority selects no endpoint
	if err != nil {
		return nil, &httplayer.StatusError{Code: http.StatusBadRequest, Reason: err.Error()}
	}
	for _, name := range s.AllowedRequestHeaders {
		for _, value := range req.Header.Values(string(name)) {
			q.Header.Add(string(name), value)
		}
	}
	q.Header.Set("X-Forwarded-Method", a.Method(req))
	q.Header.Set("X-Forwarded-Proto", a.Scheme(req))
	q.Header.Set("X-Forwarded-Host", a.Authority(req))
	q.Header.Set("X-Forwarded-Uri", req.URL.RequestURI())
	q.Header["X-Forwarded-For"] = req.Header["X-Forwarded-For"] // of the layer forwarded
	return q, nil
}
