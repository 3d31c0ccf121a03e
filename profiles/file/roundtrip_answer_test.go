package file

import (
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// answers draws what a route does without its targets, or beside them.
func (d draw) answers(r *profiles.Route, o object) {
	if d.int(0, 3) == 0 {
		r.Redirect, o["redirect"] = d.redirect()
	}
	f, fault := d.fault()
	m, mirror := d.mirror()
	r.Faults, o["faults"] = []profiles.Fault{f}, []object{fault}
	r.Mirrors, o["mirrors"] = []profiles.Mirror{m}, []object{mirror}
	r.Rewrite, r.Respond = &profiles.Rewrite{Host: d.pick("web", "web:80")}, &layer.DirectResponse{Status: d.int(200, 999)}
	rewrite, respond := object{"host": r.Rewrite.Host}, object{"status": r.Respond.Status}
	if d.int(0, 1) == 0 {
		r.Rewrite.Path, rewrite["path"] = "/new?a=b", "/new?a=b"
		r.Respond.GRPC, respond["grpc"] = 14, "unavailable"
	} else {
		r.Rewrite.OldPrefix, r.Rewrite.NewPrefix, rewrite["oldPrefix"], rewrite["newPrefix"] = "/v1", "/v2", "/v1", "/v2"
		r.Respond.Message, respond["message"] = "a b", "a b"
		r.Respond.Header, respond["header"] = []layer.HeaderField{{Name: "retry-after", Value: "1"}}, object{"retry-after": "1"}
	}
	o["rewrite"], o["respond"] = rewrite, respond
}

// changes draws those of a header.
func (d draw) changes() (layer.HeaderMutation, object) {
	a, b, c := d.pick("1", "é {", ""), d.pick("2", "~"), d.pick("3", "true")
	return layer.HeaderMutation{
		Add: []layer.HeaderField{{Name: "x-a", Value: a}, {Name: "x-a", Value: b}}, Set: []layer.HeaderField{{Name: "X-B", Value: c}},
		Remove: []string{"x-c", "x-d"},
	}, object{"add": object{"x-a": []string{a, b}}, "set": object{"X-B": c}, "remove": []string{"x-c", "x-d"}}
}

func (d draw) redirect() (*profiles.Redirect, object) {
	r := &profiles.Redirect{Status: 301, Scheme: d.pick("http", "https"), Host: d.pick("www.example", "10.0.0.1"), Port: uint16(d.int(1, 65535))}
	o := object{"status": 301, "scheme": r.Scheme, "host": r.Host, "port": r.Port}
	if d.int(0, 1) == 0 {
		r.Path = "/new"
		o["path"] = r.Path
		return r, o
	}
	r.OldPrefix, r.NewPrefix = "/v1", "/v2"
	o["oldPrefix"], o["newPrefix"] = r.OldPrefix, r.NewPrefix
	return r, o
}

func (d draw) fault() (profiles.Fault, object) {
	f := profiles.Fault{Fraction: float64(d.int(0, 8)) / 8, Status: d.int(400, 599), GRPC: uint32(d.int(1, 16)), TTL: time.Hour}
	o := object{"share": f.Fraction, "status": f.Status, "grpc": f.GRPC, "ttl": "1h"}
	if d.int(0, 1) == 0 {
		o["grpc"] = grpcNames()[f.GRPC]
	}
	if d.int(0, 1) == 0 {
		o["share"] = fmt.Sprintf("%g%%", f.Fraction*100)
	}
	f.Delay, o["delay"] = time.Second, "1s"
	f.Jitter, o["jitter"] = time.Millisecond, "1ms"
	f.Message, o["message"] = "a b", "a b"
	return f, o
}

func (d draw) mirror() (profiles.Mirror, object) {
	m := profiles.Mirror{Authority: "web-v3:80", Fraction: float64(d.int(1, 8)) / 8, MaxBodyBytes: int64(d.int(1, 100)) << 10, MaxInFlight: d.int(0, 10)}
	o := object{"target": d.pick("web-v3", "web-v3:80"), "share": m.Fraction, "body": m.MaxBodyBytes, "inFlight": m.MaxInFlight}
	switch d.int(0, 2) {
	case 0:
		o["body"] = fmt.Sprintf("%dKiB", m.MaxBodyBytes>>10)
	case 1:
		m.MaxBodyBytes, o["body"] = -1, 0
	}
	return m, o
}
