package main

import (
	"go/ast"
	"go/types"
	"iter"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const layerPath = "github.com/gotower/gotower/layer"

// isService reports whether t has layer.Service's methods: Ready with a context, and Call with a
// context and a request.
func isService(t types.Type) bool {
	// Methods with a pointer receiver count, too, so look at the pointer type.
	if _, isPointer := t.Underlying().(*types.Pointer); !isPointer && !types.IsInterface(t) {
		t = types.NewPointer(t)
	}
	methods := types.NewMethodSet(t)
	return hasShape(methods.Lookup(nil, "Ready"), 1, 1) && hasShape(methods.Lookup(nil, "Call"), 2, 2)
}

// hasShape reports whether m is a method with these numbers of parameters and results, whose first parameter is a
// context and whose last result is an error.
func hasShape(m *types.Selection, params, results int) bool {
	if m == nil {
		return false
	}
	s, ok := m.Type().(*types.Signature)
	return ok && s.Params().Len() == params && s.Results().Len() == results &&
		s.Params().At(0).Type().String() == "context.Context" &&
		s.Results().At(results-1).Type().String() == "error"
}

// isLayerError reports whether obj is one of package layer's error values.
func isLayerError(obj types.Object) bool {
	v, ok := obj.(*types.Var)
	return ok && isLayers(v) && strings.HasPrefix(v.Name(), "Err") && v.Parent() == v.Pkg().Scope()
}

// isLayers reports whether obj is declared in package layer.
func isLayers(obj types.Object) bool {
	return obj != nil && obj.Pkg() != nil && obj.Pkg().Path() == layerPath
}

// productFuncs returns the functions and methods outside test files. Tests may call Ready to
// check it, and make faulty services on purpose.
func productFuncs(pass *analysis.Pass) iter.Seq[*ast.FuncDecl] {
	return func(yield func(*ast.FuncDecl) bool) {
		for _, file := range pass.Files {
			if strings.HasSuffix(pass.Fset.Position(file.Package).Filename, "_test.go") {
				continue
			}
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil && !yield(f) {
					return
				}
			}
		}
	}
}
