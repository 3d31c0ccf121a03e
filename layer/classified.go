package layer

import "reflect"

// Classified is a Service that knows what its outcomes mean. A service that
// sends requests to an endpoint implements it, so that a balancer recognizes
// the failures of the endpoint without an option.
//
// Classifier returns the classifier, or nil if there is none. It is called
// when a service is put to use, not for each request.
type Classified[Rsp any] interface {
	Classifier() Classifier[Rsp]
}

// ClassifierOf returns the classifier of svc, or nil if it has none.
//
// It is that of the first [Classified] service on the way in: svc itself, then
// the services that it wraps. A wrapper is known by a method Next that returns
// the wrapped Service, or by a field Service that it embeds. A service built by
// a [Stack] has the classifier of the option [WithClassifier] if the Stack has that
// option and at least one layer.
//
// A service that makes or chooses another one for each request, such as a
// [Router], a [Failover], [Lazy] or [Reconnect], has none.
func ClassifierOf[Req, Rsp any](svc Service[Req, Rsp]) Classifier[Rsp] {
	for svc != nil {
		if c, ok := svc.(Classified[Rsp]); ok {
			return c.Classifier()
		}
		if w, ok := svc.(interface{ Next() Service[Req, Rsp] }); ok {
			svc = w.Next()
			continue
		}
		svc = embedded(svc)
	}
	return nil
}

// embedded returns the Service that a struct embeds, as the doc of [Layer]
// tells to write a layer. It returns nil if there is none.
func embedded[Req, Rsp any](svc Service[Req, Rsp]) Service[Req, Rsp] {
	v := reflect.ValueOf(svc)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	field, ok := v.Type().FieldByName("Service")
	if !ok || !field.Anonymous {
		return nil
	}
	if v, err := v.FieldByIndexErr(field.Index); err == nil {
		next, _ := reflect.TypeAssert[Service[Req, Rsp]](v)
		return next
	}
	return nil
}
