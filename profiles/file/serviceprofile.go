package file

import (
	"math"

	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/profiles"
)

func (e *entry) linkerdBudget(v value) {
	b := &profiles.RetryBudget{}
	wrong := len(v.wrong)
	v.read(fields{
		"retryRatio":          number(&b.Ratio),
		"minRetriesPerSecond": count32(&b.MinPerSecond, math.MaxUint32),
		"ttl":                 signedDuration(&b.TTL),
	})
	for _, name := range []string{"retryRatio", "minRetriesPerSecond", "ttl"} {
		v.require(name, "all three: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}")
	}
	if len(v.wrong) > wrong {
		return
	}
	e.profile.RetryBudget = b
	if err := b.Validate(); err != nil {
		e.profile.RetryBudget = nil
		v.warnf("%v: left out as linkerd does, so there are no retries", err)
	}
}

func (e *entry) dstOverrides(v value) {
	for _, item := range v.items() {
		var t profiles.Target
		item.read(fields{
			"authority": word(&t.Authority),
			"weight":    into(&t.Weight, "a quantity such as 1, 0.5 or 500m, from 0 to 429496", parseWeight),
		})
		item.require("authority", "web-v2.default.svc.cluster.local:80")
		item.require("weight", "the share, such as 500m")
		if t.Authority == "" {
			continue
		}
		if err := (profiles.Target{Authority: withPort(t.Authority, defaultPort)}).Validate(); err != nil {
			at, _ := item.field("authority")
			at.warnf("%v: left out as linkerd does", err)
			continue
		}
		e.split = append(e.split, t)
	}
}

// readOpaquePorts takes a mapping with the ports as keys, which is what linkerd
// reads, and a list of them, which is what its schema says.
func (e *entry) readOpaquePorts(v value) {
	e.opaquePorts = map[uint16]bool{}
	add := func(v value, text string) {
		port, ok := parsePort(text)
		if !ok {
			v.failf("want a port from 1 to 65535")
		}
		e.opaquePorts[port] = true
	}
	if v.n.Kind == yaml.MappingNode {
		v.each(func(key, _ value) { add(key, key.n.Value) })
		return
	}
	for _, item := range v.items() {
		if text, ok := item.text(); ok {
			add(item, text)
		}
	}
}
