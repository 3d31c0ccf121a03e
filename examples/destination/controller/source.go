package controller

import (
	"errors"
	"log/slog"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
)

// Source has the configuration of a controller. The controller looks up only the names and
// ports that clients request. It keeps the results only while streams of the name or port
// are open. Therefore a source may be much larger than a [Config]. The methods must not
// call methods of the controller, because the controller holds its lock during the call.
type Source interface {
	// Destination returns the destination of host:port, and the objects from which it was
	// made. The host is a name in lower case or an IP address. If a name does not exist,
	// d.Absent is true. For an IP address, d must have only a profile. If the argument
	// endpoints is false, d.Endpoints may be left out.
	Destination(host string, port uint16, endpoints bool) (d Destination, uses []Object)

	// Server returns the inbound policy of a port of a workload, and the objects from which
	// it was made. The result must not be nil.
	Server(workload string, port uint16) (msg *inbound.Server, uses []Object)
}

// Object identifies an object of a [Source]. The source defines the meaning of the fields.
// An Object may identify an object that does not exist, because an answer may depend on the
// absence of the object.
type Object struct{ Kind, Namespace, Name string }

// requested is the state of a name or port that has open streams.
type requested struct {
	streams int
	uses    []Object
	entry   *entry          // of a name; nil if the controller has no source
	server  *inbound.Server // of a port; nil if the controller has no source
}

// Use makes s the source of the controller and queues the first message of each stream.
// It must be called at most once, and not together with [Controller.Set]. When an object of
// s changes, the caller must call [Controller.Changed].
func (c *Controller) Use(s Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source = s
	for key, w := range c.watched {
		c.refresh(key, w)
	}
	c.loaded = true
}

// Changed repeats the look-up of each name or port that has open streams and depends on at
// least one of the objects. It queues the changes for these streams. It has no effect before
// [Controller.Use].
func (c *Controller) Changed(objects ...Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.source == nil {
		return
	}
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

// refresh looks up key, a target or serverKey, in the source. It stores the result in w,
// the element of c.watched for key. It queues the changes for the streams of key.
func (c *Controller) refresh(key any, w *requested) {
	before := *w
	c.look(key, w)
	switch k := key.(type) {
	case target:
		c.publishEntry(k, w.entry, before.entry)
	case serverKey:
		c.servers.publish(k, changes(c, w.server, before.server))
	}
}

// look asks the source for key, a target or a serverKey. It stores the answer and the
// objects on which it depends in w, which is c.watched[key]. If the source returns an
// invalid destination, look logs the error and keeps the previous entry.
func (c *Controller) look(key any, w *requested) {
	before := w.uses
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
	c.forget(key, before)
	for _, o := range w.uses {
		if c.users[o] == nil {
			c.users[o] = make(map[any]struct{})
		}
		c.users[o][key] = struct{}{}
	}
}

// forget records in c.users that key does not depend on the objects any more. key is a target
// or a serverKey. After that, a change of one of the objects does not cause a new look-up of
// key.
func (c *Controller) forget(key any, objects []Object) {
	for _, o := range objects {
		delete(c.users[o], key)
		if len(c.users[o]) == 0 {
			delete(c.users, o)
		}
	}
}

// find makes the entry of t from the source. It also returns the objects on which the entry
// depends. After an error, the entry must not be used.
func (c *Controller) find(t target) (*entry, []Object, error) {
	d, uses := c.source.Destination(t.host, t.port, true)
	e, errs := compileDestination(t, d)
	e.addPolicy(t, func(name target) *outbound.OutboundPolicy {
		d, more := c.source.Destination(name.host, name.port, false)
		named, mistakes := compileDestination(name, d)
		uses, errs = append(uses, more...), append(errs, mistakes...)
		return named.outbound()
	})
	return e, uses, errors.Join(errs...)
}

// entry returns the entry of t, or nil if t is not configured. If the source returns an
// invalid destination for t, entry also returns nil. If t has open streams, it returns the
// last valid entry instead. The caller must hold c.mu.
func (c *Controller) entry(t target) *entry {
	if c.source == nil {
		return c.entries[t.String()]
	}
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

// serverOf returns the inbound policy of the port in key. The caller must hold c.mu.
func (c *Controller) serverOf(key serverKey) *inbound.Server {
	if c.source == nil {
		return c.inbound.server(key)
	}
	if w := c.watched[key]; w != nil {
		return w.server
	}
	msg, _ := c.source.Server(key.workload, key.port)
	return msg
}

// hold increases the number of streams of key, a target or a serverKey, by one. The first
// stream adds key to watched.
func (c *Controller) hold(key any) {
	w := c.watched[key]
	if w == nil {
		w = new(requested)
		c.watched[key] = w
		if c.source != nil {
			c.look(key, w)
		}
	}
	w.streams++
}

// drop decreases the number of streams of key by one. The last stream removes key from
// watched.
func (c *Controller) drop(key any) {
	w := c.watched[key]
	if w.streams--; w.streams == 0 {
		c.forget(key, w.uses)
		delete(c.watched, key)
	}
}
