package controller

import (
	"encoding/json"
	"log/slog"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"

	"github.com/gotower/gotower/internal/yamlfile"
)

// Source provides a controller's configuration on demand. The controller looks up only names and
// ports that clients request, and remembers the answers only while streams for them are open, so
// a source may be much larger than a [Config]. The controller holds its lock during a call, so
// the methods must not call back into it.
type Source interface {
	// Destination returns the destination for host:port as client should see it, and the objects
	// that the answer depends on. The host is a lower-case name or an IP address. If the name
	// does not exist, d.Absent is true. For an IP address, only the profile and the policy may be
	// set. If endpoints is false, d.Endpoints may be left out.
	Destination(client Client, host string, port uint16, endpoints bool) (d Destination, uses []Object)

	// Server returns the inbound policy for a workload's port, which must not be nil, and the
	// objects that the answer depends on.
	Server(workload string, port uint16) (msg *inbound.Server, uses []Object)
}

// Client is what an answer may depend on: the client's node for endpoints, and its namespace for
// policies. The other field is empty, and both are if the client does not say where it runs.
type Client struct{ Namespace, Node string }

// workload parses the text in which a client says where it runs, a context token or a workload.
// Linkerd's injector sets it to something like {"ns":"shop","nodeName":"n1","pod":"web-1"}. Old
// proxies send "ns:shop" as token and "shop:web-1" as workload.
func workload(text string) Client {
	// Newer proxies send JSON.
	var w struct {
		NS   string `json:"ns"`
		Node string `json:"nodeName"`
	}
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		// Older ones send ns:NAMESPACE as a token, and NAMESPACE:POD as a workload.
		namespace, name, _ := strings.Cut(text, ":")
		if namespace == "ns" {
			namespace = name
		}
		return Client{Namespace: namespace}
	}
	return Client{Namespace: w.NS, Node: w.Node}
}

// Object identifies something in a [Source], which defines what the fields mean. It need not
// exist, because an answer may depend on its absence.
type Object struct{ Kind, Namespace, Name string }

// requested is what the controller remembers about a name or port with open streams.
type requested struct {
	streams int
	uses    []Object
	entry   *entry          // for a name; nil if the controller has no source
	server  *inbound.Server // for a port; nil if the controller has no source
}

// Use makes s the controller's source and queues each stream's first message. Call it at most
// once, and not together with [Controller.Set]. When an object in s changes, call
// [Controller.Changed].
func (c *Controller) Use(s Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source = s
	// Streams that are already open have waited for this.
	for key, w := range c.watched {
		c.refresh(key, w)
	}
	c.loaded = true
}

// Changed looks up again every name and port that has open streams and depends on one of the
// objects, and queues the differences. It has no effect before [Controller.Use].
func (c *Controller) Changed(objects ...Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.source == nil {
		return
	}
	// An object may occur for several keys, and a key for several objects. Each key is looked up once.
	keys := make(map[any]struct{})
	for _, o := range objects {
		for key := range c.users[o] {
			keys[key] = struct{}{}
		}
	}
	for key := range keys {
		c.refresh(key, c.watched[key])
	}
}

// refresh looks up key, a target or serverKey, and queues the differences for its streams. w is
// c.watched[key].
func (c *Controller) refresh(key any, w *requested) {
	// Copy w, because look replaces its fields.
	previous := *w
	c.look(key, w)
	switch k := key.(type) {
	case target:
		c.publishEntry(k, w.entry, previous.entry)
	case serverKey:
		c.servers.publish(k, changes(c, w.server, previous.server))
	}
}

// look asks the source about key, a target or serverKey. It stores the answer and what it depends
// on in w, which is c.watched[key]. If the destination is invalid, look logs the error and keeps
// the last valid entry.
func (c *Controller) look(key any, w *requested) {
	previous := w.uses
	switch k := key.(type) {
	case target:
		e, uses, err := c.find(k)
		if err != nil {
			c.log.Error("invalid destination, the last valid one stays active", slog.Any("path", k), slog.Any("reason", err))
		} else {
			w.entry = e
		}
		w.uses = uses
	case serverKey:
		w.server, w.uses = c.source.Server(k.workload, k.port)
	}
	// Forget first, because the old and new objects usually overlap.
	c.forget(key, previous)
	for _, o := range w.uses {
		if c.users[o] == nil {
			c.users[o] = make(map[any]struct{})
		}
		c.users[o][key] = struct{}{}
	}
}

// forget records that key, a target or serverKey, no longer depends on the objects, so that
// changing them does not cause another lookup.
func (c *Controller) forget(key any, objects []Object) {
	for _, o := range objects {
		delete(c.users[o], key)
		if len(c.users[o]) == 0 {
			delete(c.users, o)
		}
	}
}

// find asks the source for t's entry and the objects it depends on. If err is not nil, the entry
// must not be used.
func (c *Controller) find(t target) (*entry, []Object, error) {
	// v collects mistakes without positions, because the values come from a program and not from a file.
	v := yamlfile.Program(nil)
	// The endpoints are needed only for t itself, and not for the targets that its policy names.
	lookup := func(t target, endpoints bool) (*entry, []Object) {
		d, uses := c.source.Destination(t.client, t.host, t.port, endpoints)
		d.validate(v, t)
		return newEntry(v, t, d), uses
	}
	// uses grows during addPolicy, when the policy of a named destination is looked up.
	e, uses := lookup(t, true)
	e.addPolicy(t, func(name target) *outbound.OutboundPolicy {
		named, more := lookup(name, false)
		uses = append(uses, more...)
		return named.outbound()
	})
	return e, uses, yamlfile.Join(v.Mistakes)
}

// entry returns t's entry, or nil if t is not configured or the source's answer is invalid. While
// streams for t are open, it returns the last valid entry. The caller must hold c.mu.
func (c *Controller) entry(t target) *entry {
	if c.source == nil {
		return c.entries[t.String()]
	}
	// A stream's current entry is the one from which the next difference is computed, so all streams must use it.
	if w := c.watched[t]; w != nil {
		return w.entry
	}
	e, _, err := c.find(t)
	if err != nil {
		c.log.Error("invalid destination", slog.Any("path", t), slog.Any("reason", err))
		return nil
	}
	return e
}

// serverOf returns the inbound policy for key. The caller must hold c.mu.
func (c *Controller) serverOf(key serverKey) *inbound.Server {
	if c.source == nil {
		return c.inbound.server(key)
	}
	// A stream for this key is open, so its policy is kept up to date.
	if w := c.watched[key]; w != nil {
		return w.server
	}
	// No stream is open, so the policy is looked up for this call only.
	msg, _ := c.source.Server(key.workload, key.port)
	return msg
}

// hold counts a new stream for key, a target or serverKey. The first one adds key to watched.
func (c *Controller) hold(key any) {
	w := c.watched[key]
	if w == nil {
		w = new(requested)
		c.watched[key] = w
		// Without a source, the configuration already contains everything.
		if c.source != nil {
			c.look(key, w)
		}
	}
	w.streams++
}

// drop counts off a stream for key. The last one removes key from watched.
func (c *Controller) drop(key any) {
	w := c.watched[key]
	if w.streams--; w.streams == 0 {
		c.forget(key, w.uses)
		delete(c.watched, key)
	}
}
