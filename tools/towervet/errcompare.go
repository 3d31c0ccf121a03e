package main

import (
	"go/ast"
	"go/token"

	"golang.org/x/tools/go/analysis"
)

var errCompare = &analysis.Analyzer{
	Name: "errcompare",
	Doc:  "report == and != with the errors of package layer",
	Run:  runErrCompare,
}

// runErrCompare reports comparisons by operators and by switch, because an error of a layer wraps these
// values, so that only errors.Is finds them.
func runErrCompare(pass *analysis.Pass) (any, error) {
	for _, file := range pass.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				return n.Recv == nil || n.Name.Name != "Is" // an Is method is meant to compare identity
			case *ast.BinaryExpr:
				if n.Op == token.EQL || n.Op == token.NEQ {
					// The value of package layer may be on either side.
					checkCompared(pass, n.X, n.Y)
					checkCompared(pass, n.Y, n.X)
				}
			case *ast.SwitchStmt:
				if n.Tag == nil {
					return true
				}
				for _, clause := range n.Body.List {
					for _, e := range clause.(*ast.CaseClause).List {
						checkCompared(pass, n.Tag, e)
					}
				}
			}
			return true
		})
	}
	return nil, nil
}

// checkCompared checks a comparison between err and operand, by an operator or in a switch
// statement. Comparing with one of package layer's errors is a mistake, because errors may be
// wrapped. For the exception, see isKind.
func checkCompared(pass *analysis.Pass, err, operand ast.Expr) {
	operand = ast.Unparen(operand)
	id, ok := operand.(*ast.Ident)
	if s, isSelector := operand.(*ast.SelectorExpr); isSelector {
		id = s.Sel
		ok = true
	}
	if ok && isLayerError(pass.TypesInfo.Uses[id]) && !isKind(pass, err, id.Name) {
		pass.Reportf(operand.Pos(), "layer.%s comes wrapped: use errors.Is", id.Name)
	}
}

// isKind reports whether err is a field named Kind that == may compare with the named layer
// error. In a layer.Error, Kind may wrap ErrNotReady and ErrTimeout, so those need errors.Is. A
// field Kind in another type is fine.
func isKind(pass *analysis.Pass, err ast.Expr, name string) bool {
	s, ok := ast.Unparen(err).(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Kind" {
		return false
	}
	return !isLayers(pass.TypesInfo.Uses[s.Sel]) || name != "ErrNotReady" && name != "ErrTimeout"
}
