package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// longPoll is a [profiles.Source] of JSON documents on an HTTP server. A request for a target's document
// carries the ETag of the last one, and the server responds as soon as it has another one.
type longPoll struct {
	client *http.Client
	base   string // URL below which the document of each target is
}

// document is the JSON form of a profile.
type document struct {
	Routes []struct {
		Name     string            `json:"name"`
		Method   string            `json:"method"`
		Prefix   string            `json:"prefix"`
		Header   map[string]string `json:"header"` // fields that a request must have
		Timeout  string            `json:"timeout"`
		Retries  int               `json:"retries"`
		Request  map[string]string `json:"requestHeader"`  // fields to set
		Response map[string]string `json:"responseHeader"` // fields to set
		Backends map[string]uint32 `json:"backends"`       // weights; none means the split
	} `json:"routes"`
	Split map[string]uint32 `json:"split"` // weights
}

// Watch yields the profile of target, and again after each change, until ctx ends or the consumer breaks.
func (s *longPoll) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		for tag := ""; ctx.Err() == nil; {
			p, next, err := s.get(ctx, target, tag)
			if ctx.Err() != nil || (p != nil || err != nil) && !yield(p, err) {
				return
			}
			if tag = cmp.Or(next, tag); err != nil {
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		}
	}
}

// get returns the profile of target and its tag as soon as the server has another one than that with the
// given tag. The profile is nil if the server waited for too long.
func (s *longPoll) get(ctx context.Context, target, tag string) (p *profiles.Profile, next string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+url.PathEscape(target), http.NoBody)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("If-None-Match", tag)
	rsp, err := s.client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer rsp.Body.Close()
	switch rsp.StatusCode {
	case http.StatusNotModified:
		return nil, "", nil
	case http.StatusOK:
	default:
		return nil, "", fmt.Errorf("profile of %s: %s", target, rsp.Status)
	}
	var d document
	if err := json.NewDecoder(rsp.Body).Decode(&d); err != nil {
		return nil, "", fmt.Errorf("profile of %s: %w", target, err)
	}
	p, err = d.profile()
	return p, rsp.Header.Get("ETag"), err
}

// profile converts d, or returns all mistakes in it.
func (d *document) profile() (*profiles.Profile, error) {
	p := &profiles.Profile{
		Targets:     targets(d.Split),
		RetryBudget: &profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 100, TTL: 10 * time.Second},
	}
	for _, r := range d.Routes {
		timeout, err := time.ParseDuration(cmp.Or(r.Timeout, "0s"))
		if err != nil {
			return nil, fmt.Errorf("route %s: timeout: %w", r.Name, err)
		}
		match := profiles.All{profiles.PathPrefix(r.Prefix)}
		if r.Method != "" {
			match = append(match, profiles.Method(r.Method))
		}
		for _, f := range fields(r.Header) {
			match = append(match, profiles.Header{Name: f.Name, Value: profiles.Exact(f.Value)})
		}
		route := profiles.Route{
			Name: r.Name, Match: match, Labels: map[string]string{"route": r.Name}, Timeout: timeout,
			RequestHeader:  layer.HeaderMutation{Set: fields(r.Request)},
			ResponseHeader: layer.HeaderMutation{Set: fields(r.Response)},
		}
		if r.Retries > 0 {
			route.Retry = &profiles.Retry{Max: r.Retries}
		}
		for _, t := range targets(r.Backends) {
			route.Backends = append(route.Backends, profiles.Backend{Target: t})
		}
		p.Routes = append(p.Routes, route)
	}
	return p, p.Validate()
}

// fields returns m in the order of names, so that a route stays equal.
func fields(m map[string]string) (all []layer.HeaderField) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, layer.HeaderField{Name: name, Value: m[name]})
	}
	return all
}

// targets returns the targets in m in the order of names.
func targets(m map[string]uint32) (all []profiles.Target) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, profiles.Target{Authority: name, Weight: m[name]})
	}
	return all
}
