package main

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"

	"golang.org/x/crypto/acme/autocert"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer/httplayer"
)

// challenges answers HTTP-01 challenges for the certificates that the gateway obtains by ACME.
// Every listener without TLS does so before it compares routes, because an ACME server connects
// to port 80.
type challenges struct {
	services atomic.Pointer[map[string]httplayer.Service] // by domain
}

// use makes c answer challenges with managers, for their listeners' domains.
func (c *challenges) use(managers map[*autocert.Manager]*config.ACME) {
	services := make(map[string]httplayer.Service)
	// A manager answers challenges for all of its domains.
	for manager, a := range managers {
		service := httplayer.FromHandler(manager.HTTPHandler(http.NotFoundHandler()))
		for _, domain := range a.Domains {
			services[string(domain)] = service
		}
	}
	c.services.Store(&services)
}

// layer returns a layer that answers challenges. Challenges that no manager knows are passed on,
// because another program may obtain certificates too.
func (c *challenges) layer() httplayer.Layer {
	return func(next httplayer.Service) httplayer.Service { return &challengeService{next, c} }
}

// challengeService answers the requests with which an ACME server verifies that this gateway controls a domain.
// All other requests go to the inner service.
type challengeService struct {
	httplayer.Service

	challenges *challenges
}

// Call answers a challenge that one of the managers knows, and sends any other request.
func (s *challengeService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	services := s.challenges.services.Load()
	if services == nil || len(*services) == 0 || !strings.HasPrefix(req.URL.Path, "/.well-known/acme-challenge/") {
		return s.Service.Call(ctx, req)
	}
	// The manager compares the host without regard to a port, and in lower case.
	question := *req
	question.Host = strings.ToLower(hostname(req))
	manager := (*services)[question.Host]
	if manager == nil {
		return s.Service.Call(ctx, req)
	}
	rsp, err := manager.Call(ctx, &question)
	// Another status means that the manager does not know the challenge.
	if err != nil || rsp.StatusCode == http.StatusOK {
		return rsp, err
	}
	// The manager's answer is not needed. Another program may know the challenge.
	httplayer.HTTP{}.Drain(rsp)
	return s.Service.Call(ctx, req)
}
