package file

import (
	"time"

	"github.com/gotower/gotower/profiles"
)

func (e *entry) linkerdRoutes(v value) {
	var items []value // of the routes that are left
	for _, item := range v.items() {
		if item.isNull() {
			item.failf("an empty route: take it out, or write {name: get, condition: {method: GET}}")
			continue
		}
		if r, ok := item.linkerdRoute(); ok {
			e.profile.Routes, items = append(e.profile.Routes, r), append(items, item)
		}
	}
	var kept []profiles.Route
	problems := tooMuch(e.profile.Routes)
	for i, r := range e.profile.Routes {
		if why := problems[i]; why != nil {
			routerDrops(items[i], why.Error())
		} else {
			kept = append(kept, r)
		}
	}
	e.profile.Routes = kept
}

// linkerdRoute returns false if the route is left out.
func (v value) linkerdRoute() (r profiles.Route, ok bool) {
	v.read(fields{
		"name":            word(&r.Name),
		"condition":       func(v value) { r.Match = v.requestMatch() },
		"isRetryable":     boolean(&r.Retryable),
		"responseClasses": func(v value) { r.Classes = v.linkerdClasses() },
		"timeout":         func(v value) { r.Timeout = v.linkerdTimeout() },
	})
	r.RetryNonIdempotent = r.Retryable // linkerd retries all methods
	v.require("name", "what the route is called in metrics")
	v.require("condition", "which requests: {method: GET, pathRegex: /books}")
	r.Labels = map[string]string{"route": r.Name}
	if condition, ok := v.field("condition"); ok && r.Match == nil {
		condition.warnf("nothing of the condition is left: the route is left out")
	}
	return r, r.Match != nil
}

// linkerdTimeout takes an empty one for none.
func (v value) linkerdTimeout() (d time.Duration) {
	if text, ok := v.text(); ok && text != "" {
		signedDuration(&d)(v)
	}
	if d < 0 {
		linkerdDrops(v, "it is below 0")
	}
	return max(d, 0)
}

func (v value) linkerdClasses() []profiles.ResponseClass {
	var classes []profiles.ResponseClass
	for _, item := range v.items() {
		if item.isNull() {
			item.failf("an empty response class: take it out")
			continue
		}
		var c profiles.ResponseClass
		item.read(fields{
			"condition": func(v value) { c.Match = v.responseMatch() },
			"isFailure": boolean(&c.Failure),
		})
		item.require("condition", "which responses: {status: {min: 500, max: 599}}")
		if c.Match != nil {
			classes = append(classes, c)
		} else if condition, ok := item.field("condition"); ok {
			condition.warnf("nothing of the condition is left: linkerd leaves the response class out")
		}
	}
	return classes
}
