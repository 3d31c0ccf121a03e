package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// To write a layer of your own, embed the inner service and override Call, as the types below do.

// cors returns a layer that applies c, or nil if c is nil. It responds to preflight requests, and
// adds headers that let pages from other origins read responses.
func cors(c *config.CORS) httplayer.Layer {
	if c == nil {
		return nil
	}
	// These methods need no preflight, so they are always allowed.
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

// corsService is the service of a route with CORS. The texts are values of response headers.
type corsService struct {
	httplayer.Service
	*config.CORS

	any                               bool // whether all origins are allowed
	methods, headers, exposed, maxAge string
}

// Call answers a preflight request. It sends any other one, and adds the headers for CORS to the response.
func (s *corsService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	origin := req.Header.Get("Origin")
	if req.Method == http.MethodOptions && origin != "" && req.Header.Get("Access-Control-Request-Method") != "" {
		return s.preflight(req, origin), nil
	}
	rsp, err := s.Service.Call(ctx, req)
	// The error page needs the headers too. Otherwise, a page cannot read the status.
	if err != nil {
		return nil, &corsError{err, s, origin}
	}
	for _, name := range []string{"Origin", "Credentials", "Methods", "Headers"} {
		rsp.Header.Del("Access-Control-Allow-" + name) // the gateway decides, not the service
	}
	rsp.Header.Del("Access-Control-Expose-Headers")
	s.allow(rsp.Header, origin)
	return rsp, nil
}

// corsError is an error on a route with CORS. [errorPages] adds the headers that let a page from
// origin read the error response.
type corsError struct {
	error
	cors   *corsService
	origin string
}

func (e *corsError) Unwrap() error { return e.error }

// errorPages returns the error handler for a listener with the given pages.
func errorPages(pages []config.ErrorPage) httplayer.ErrorHandler {
	byCode := make(map[int]*config.ErrorPage)
	for i := range pages {
		for _, code := range pages[i].Codes {
			byCode[int(code)] = &pages[i]
		}
	}
	// The handler runs for each error response of the listener.
	return func(w http.ResponseWriter, r *http.Request, err error) {
		if e, ok := errors.AsType[*corsError](err); ok {
			e.cors.allow(w.Header(), e.origin)
		}
		status, _ := httplayer.StatusFromError(err)
		if page := byCode[status]; page != nil {
			w.Header().Set("Content-Type", string(page.ContentType))
			_, _ = w.Write(page.File.Data)
			return
		}
		httplayer.Problem(w, r, err)
	}
}

// preflight returns the response to a preflight request from origin. It allows nothing if the configuration
// does not allow origin.
func (s *corsService) preflight(req *http.Request, origin string) *http.Response {
	rsp := httplayer.HTTP{}.NewResponse(req, layer.DirectResponse{Status: http.StatusNoContent})
	// Without these headers, the browser does not send the request itself.
	if s.allow(rsp.Header, origin) {
		rsp.Header.Set("Access-Control-Allow-Methods", allowed(s.methods, req.Header.Get("Access-Control-Request-Method")))
		rsp.Header.Set("Access-Control-Max-Age", s.maxAge)
		if headers := allowed(s.headers, req.Header.Get("Access-Control-Request-Headers")); headers != "" {
			rsp.Header.Set("Access-Control-Allow-Headers", headers)
		}
	}
	return rsp
}

// allowed returns the value for a CORS response header: the configured list, or what the browser
// requested if list is "*". Browsers do not accept a literal "*" for requests with credentials.
func allowed(list, requested string) string {
	if list == "*" {
		return requested
	}
	return list
}

// allow adds the headers that let a page from origin use the route. It returns false if the
// origin is not allowed.
func (s *corsService) allow(h http.Header, origin string) bool {
	if s.any {
		origin = "*"
	} else {
		// The response depends on the origin, so a cache must not reuse it for another one.
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

// externalAuth returns a layer that asks service whether each request is allowed, as e
// configures, or nil if e is nil.
func externalAuth(e *config.ExternalAuth, service httplayer.Service) httplayer.Layer {
	if e == nil {
		return nil
	}
	authorizer := httplayer.NewStack().WithTarget(string(e.BackendRef.Name)).
		ResponseHeaderTimeout(e.Timeout.D()).
		With("drop_informational", httplayer.DropInformational()).
		Service(service)
	return func(next httplayer.Service) httplayer.Service {
		return &authService{Service: next, ExternalAuth: e, authorizer: authorizer}
	}
}

// authService is the service of a route with external authorization.
type authService struct {
	httplayer.Service
	*config.ExternalAuth

	authorizer httplayer.Service
}

// Call asks the authorizer about req. It sends req, with the header fields that the authorizer adds, if the
// answer has a status from 200 to 299. Otherwise it returns the answer, or 503 if there is none.
func (s *authService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	question, err := s.question(ctx, req)
	if err != nil {
		return nil, err
	}
	answer, err := s.authorizer.Call(ctx, question)
	switch {
	case err != nil && ctx.Err() != nil: // for example, the client canceled the request
		return nil, err
	case err != nil:
		return nil, &httplayer.StatusError{Code: http.StatusServiceUnavailable, Reason: fmt.Sprintf("external auth: %v", err)}
	case answer.StatusCode/100 != 2:
		return answer, nil
	}
	// Only the answer's header matters.
	httplayer.HTTP{}.Drain(answer)
	// The client must not set fields that only the authorizer may set.
	allowed := httplayer.HTTP{}.EditRequest(req, layer.HeaderMutation{Remove: texts(s.AllowedResponseHeaders)})
	for _, name := range s.AllowedResponseHeaders {
		for _, value := range answer.Header.Values(string(name)) {
			allowed.Header.Add(string(name), value)
		}
	}
	return s.Service.Call(ctx, allowed)
}

// question returns the GET request that asks whether req is allowed.
func (s *authService) question(ctx context.Context, req *http.Request) (*http.Request, error) {
	a := httplayer.HTTP{}
	url := "http://" + a.Authority(req) + string(s.Path)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) //nolint:gosec // the authority selects no endpoint
	if err != nil {
		return nil, &httplayer.StatusError{Code: http.StatusBadRequest, Reason: err.Error()}
	}
	// Only configured fields leave the gateway.
	for _, name := range s.AllowedRequestHeaders {
		for _, value := range req.Header.Values(string(name)) {
			q.Header.Add(string(name), value)
		}
	}
	q.Header.Set("X-Forwarded-Method", a.Method(req))
	q.Header.Set("X-Forwarded-Proto", a.Scheme(req))
	q.Header.Set("X-Forwarded-Host", a.Authority(req))
	q.Header.Set("X-Forwarded-Uri", req.URL.RequestURI())
	q.Header["X-Forwarded-For"] = req.Header["X-Forwarded-For"] // set by the layer "forwarded"
	return q, nil
}
