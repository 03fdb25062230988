// node_modules/preact/dist/preact.module.js
var n;
var l;
var u;
var t;
var i;
var r;
var o;
var e;
var f;
var c;
var s;
var a;
var h;
var p = {};
var v = [];
var y = /acit|ex(?:s|g|n|p|$)|rph|grid|ows|mnc|ntw|ine[ch]|zoo|^ord|itera/i;
var w = Array.isArray;
function d(n2, l3) {
  for (var u4 in l3) n2[u4] = l3[u4];
  return n2;
}
function g(n2) {
  n2 && n2.parentNode && n2.parentNode.removeChild(n2);
}
function _(l3, u4, t3) {
  var i4, r3, o3, e3 = {};
  for (o3 in u4) "key" == o3 ? i4 = u4[o3] : "ref" == o3 ? r3 = u4[o3] : e3[o3] = u4[o3];
  if (arguments.length > 2 && (e3.children = arguments.length > 3 ? n.call(arguments, 2) : t3), "function" == typeof l3 && null != l3.defaultProps) for (o3 in l3.defaultProps) void 0 === e3[o3] && (e3[o3] = l3.defaultProps[o3]);
  return m(l3, e3, i4, r3, null);
}
function m(n2, t3, i4, r3, o3) {
  var e3 = { type: n2, props: t3, key: i4, ref: r3, __k: null, __: null, __b: 0, __e: null, __c: null, constructor: void 0, __v: null == o3 ? ++u : o3, __i: -1, __u: 0 };
  return null == o3 && null != l.vnode && l.vnode(e3), e3;
}
function k(n2) {
  return n2.children;
}
function x(n2, l3) {
  this.props = n2, this.context = l3;
}
function S(n2, l3) {
  if (null == l3) return n2.__ ? S(n2.__, n2.__i + 1) : null;
  for (var u4; l3 < n2.__k.length; l3++) if (null != (u4 = n2.__k[l3]) && null != u4.__e) return u4.__e;
  return "function" == typeof n2.type ? S(n2) : null;
}
function C(n2) {
  var l3, u4;
  if (null != (n2 = n2.__) && null != n2.__c) {
    for (n2.__e = n2.__c.base = null, l3 = 0; l3 < n2.__k.length; l3++) if (null != (u4 = n2.__k[l3]) && null != u4.__e) {
      n2.__e = n2.__c.base = u4.__e;
      break;
    }
    return C(n2);
  }
}
function M(n2) {
  (!n2.__d && (n2.__d = true) && i.push(n2) && !$.__r++ || r != l.debounceRendering) && ((r = l.debounceRendering) || o)($);
}
function $() {
  for (var n2, u4, t3, r3, o3, f4, c3, s3 = 1; i.length; ) i.length > s3 && i.sort(e), n2 = i.shift(), s3 = i.length, n2.__d && (t3 = void 0, r3 = void 0, o3 = (r3 = (u4 = n2).__v).__e, f4 = [], c3 = [], u4.__P && ((t3 = d({}, r3)).__v = r3.__v + 1, l.vnode && l.vnode(t3), O(u4.__P, t3, r3, u4.__n, u4.__P.namespaceURI, 32 & r3.__u ? [o3] : null, f4, null == o3 ? S(r3) : o3, !!(32 & r3.__u), c3), t3.__v = r3.__v, t3.__.__k[t3.__i] = t3, N(f4, t3, c3), r3.__e = r3.__ = null, t3.__e != o3 && C(t3)));
  $.__r = 0;
}
function I(n2, l3, u4, t3, i4, r3, o3, e3, f4, c3, s3) {
  var a3, h3, y3, w3, d3, g2, _4, m3 = t3 && t3.__k || v, b = l3.length;
  for (f4 = P(u4, l3, m3, f4, b), a3 = 0; a3 < b; a3++) null != (y3 = u4.__k[a3]) && (h3 = -1 == y3.__i ? p : m3[y3.__i] || p, y3.__i = a3, g2 = O(n2, y3, h3, i4, r3, o3, e3, f4, c3, s3), w3 = y3.__e, y3.ref && h3.ref != y3.ref && (h3.ref && B(h3.ref, null, y3), s3.push(y3.ref, y3.__c || w3, y3)), null == d3 && null != w3 && (d3 = w3), (_4 = !!(4 & y3.__u)) || h3.__k === y3.__k ? f4 = A(y3, f4, n2, _4) : "function" == typeof y3.type && void 0 !== g2 ? f4 = g2 : w3 && (f4 = w3.nextSibling), y3.__u &= -7);
  return u4.__e = d3, f4;
}
function P(n2, l3, u4, t3, i4) {
  var r3, o3, e3, f4, c3, s3 = u4.length, a3 = s3, h3 = 0;
  for (n2.__k = new Array(i4), r3 = 0; r3 < i4; r3++) null != (o3 = l3[r3]) && "boolean" != typeof o3 && "function" != typeof o3 ? (f4 = r3 + h3, (o3 = n2.__k[r3] = "string" == typeof o3 || "number" == typeof o3 || "bigint" == typeof o3 || o3.constructor == String ? m(null, o3, null, null, null) : w(o3) ? m(k, { children: o3 }, null, null, null) : null == o3.constructor && o3.__b > 0 ? m(o3.type, o3.props, o3.key, o3.ref ? o3.ref : null, o3.__v) : o3).__ = n2, o3.__b = n2.__b + 1, e3 = null, -1 != (c3 = o3.__i = L(o3, u4, f4, a3)) && (a3--, (e3 = u4[c3]) && (e3.__u |= 2)), null == e3 || null == e3.__v ? (-1 == c3 && (i4 > s3 ? h3-- : i4 < s3 && h3++), "function" != typeof o3.type && (o3.__u |= 4)) : c3 != f4 && (c3 == f4 - 1 ? h3-- : c3 == f4 + 1 ? h3++ : (c3 > f4 ? h3-- : h3++, o3.__u |= 4))) : n2.__k[r3] = null;
  if (a3) for (r3 = 0; r3 < s3; r3++) null != (e3 = u4[r3]) && 0 == (2 & e3.__u) && (e3.__e == t3 && (t3 = S(e3)), D(e3, e3));
  return t3;
}
function A(n2, l3, u4, t3) {
  var i4, r3;
  if ("function" == typeof n2.type) {
    for (i4 = n2.__k, r3 = 0; i4 && r3 < i4.length; r3++) i4[r3] && (i4[r3].__ = n2, l3 = A(i4[r3], l3, u4, t3));
    return l3;
  }
  n2.__e != l3 && (t3 && (l3 && n2.type && !l3.parentNode && (l3 = S(n2)), u4.insertBefore(n2.__e, l3 || null)), l3 = n2.__e);
  do {
    l3 = l3 && l3.nextSibling;
  } while (null != l3 && 8 == l3.nodeType);
  return l3;
}
function L(n2, l3, u4, t3) {
  var i4, r3, o3, e3 = n2.key, f4 = n2.type, c3 = l3[u4], s3 = null != c3 && 0 == (2 & c3.__u);
  if (null === c3 && null == n2.key || s3 && e3 == c3.key && f4 == c3.type) return u4;
  if (t3 > (s3 ? 1 : 0)) {
    for (i4 = u4 - 1, r3 = u4 + 1; i4 >= 0 || r3 < l3.length; ) if (null != (c3 = l3[o3 = i4 >= 0 ? i4-- : r3++]) && 0 == (2 & c3.__u) && e3 == c3.key && f4 == c3.type) return o3;
  }
  return -1;
}
function T(n2, l3, u4) {
  "-" == l3[0] ? n2.setProperty(l3, null == u4 ? "" : u4) : n2[l3] = null == u4 ? "" : "number" != typeof u4 || y.test(l3) ? u4 : u4 + "px";
}
function j(n2, l3, u4, t3, i4) {
  var r3, o3;
  n: if ("style" == l3) if ("string" == typeof u4) n2.style.cssText = u4;
  else {
    if ("string" == typeof t3 && (n2.style.cssText = t3 = ""), t3) for (l3 in t3) u4 && l3 in u4 || T(n2.style, l3, "");
    if (u4) for (l3 in u4) t3 && u4[l3] == t3[l3] || T(n2.style, l3, u4[l3]);
  }
  else if ("o" == l3[0] && "n" == l3[1]) r3 = l3 != (l3 = l3.replace(f, "$1")), o3 = l3.toLowerCase(), l3 = o3 in n2 || "onFocusOut" == l3 || "onFocusIn" == l3 ? o3.slice(2) : l3.slice(2), n2.l || (n2.l = {}), n2.l[l3 + r3] = u4, u4 ? t3 ? u4.u = t3.u : (u4.u = c, n2.addEventListener(l3, r3 ? a : s, r3)) : n2.removeEventListener(l3, r3 ? a : s, r3);
  else {
    if ("http://www.w3.org/2000/svg" == i4) l3 = l3.replace(/xlink(H|:h)/, "h").replace(/sName$/, "s");
    else if ("width" != l3 && "height" != l3 && "href" != l3 && "list" != l3 && "form" != l3 && "tabIndex" != l3 && "download" != l3 && "rowSpan" != l3 && "colSpan" != l3 && "role" != l3 && "popover" != l3 && l3 in n2) try {
      n2[l3] = null == u4 ? "" : u4;
      break n;
    } catch (n3) {
    }
    "function" == typeof u4 || (null == u4 || false === u4 && "-" != l3[4] ? n2.removeAttribute(l3) : n2.setAttribute(l3, "popover" == l3 && 1 == u4 ? "" : u4));
  }
}
function F(n2) {
  return function(u4) {
    if (this.l) {
      var t3 = this.l[u4.type + n2];
      if (null == u4.t) u4.t = c++;
      else if (u4.t < t3.u) return;
      return t3(l.event ? l.event(u4) : u4);
    }
  };
}
function O(n2, u4, t3, i4, r3, o3, e3, f4, c3, s3) {
  var a3, h3, p3, v3, y3, _4, m3, b, S2, C3, M3, $2, P6, A3, H, L2, T3, j3 = u4.type;
  if (null != u4.constructor) return null;
  128 & t3.__u && (c3 = !!(32 & t3.__u), o3 = [f4 = u4.__e = t3.__e]), (a3 = l.__b) && a3(u4);
  n: if ("function" == typeof j3) try {
    if (b = u4.props, S2 = "prototype" in j3 && j3.prototype.render, C3 = (a3 = j3.contextType) && i4[a3.__c], M3 = a3 ? C3 ? C3.props.value : a3.__ : i4, t3.__c ? m3 = (h3 = u4.__c = t3.__c).__ = h3.__E : (S2 ? u4.__c = h3 = new j3(b, M3) : (u4.__c = h3 = new x(b, M3), h3.constructor = j3, h3.render = E), C3 && C3.sub(h3), h3.props = b, h3.state || (h3.state = {}), h3.context = M3, h3.__n = i4, p3 = h3.__d = true, h3.__h = [], h3._sb = []), S2 && null == h3.__s && (h3.__s = h3.state), S2 && null != j3.getDerivedStateFromProps && (h3.__s == h3.state && (h3.__s = d({}, h3.__s)), d(h3.__s, j3.getDerivedStateFromProps(b, h3.__s))), v3 = h3.props, y3 = h3.state, h3.__v = u4, p3) S2 && null == j3.getDerivedStateFromProps && null != h3.componentWillMount && h3.componentWillMount(), S2 && null != h3.componentDidMount && h3.__h.push(h3.componentDidMount);
    else {
      if (S2 && null == j3.getDerivedStateFromProps && b !== v3 && null != h3.componentWillReceiveProps && h3.componentWillReceiveProps(b, M3), !h3.__e && null != h3.shouldComponentUpdate && false === h3.shouldComponentUpdate(b, h3.__s, M3) || u4.__v == t3.__v) {
        for (u4.__v != t3.__v && (h3.props = b, h3.state = h3.__s, h3.__d = false), u4.__e = t3.__e, u4.__k = t3.__k, u4.__k.some(function(n3) {
          n3 && (n3.__ = u4);
        }), $2 = 0; $2 < h3._sb.length; $2++) h3.__h.push(h3._sb[$2]);
        h3._sb = [], h3.__h.length && e3.push(h3);
        break n;
      }
      null != h3.componentWillUpdate && h3.componentWillUpdate(b, h3.__s, M3), S2 && null != h3.componentDidUpdate && h3.__h.push(function() {
        h3.componentDidUpdate(v3, y3, _4);
      });
    }
    if (h3.context = M3, h3.props = b, h3.__P = n2, h3.__e = false, P6 = l.__r, A3 = 0, S2) {
      for (h3.state = h3.__s, h3.__d = false, P6 && P6(u4), a3 = h3.render(h3.props, h3.state, h3.context), H = 0; H < h3._sb.length; H++) h3.__h.push(h3._sb[H]);
      h3._sb = [];
    } else do {
      h3.__d = false, P6 && P6(u4), a3 = h3.render(h3.props, h3.state, h3.context), h3.state = h3.__s;
    } while (h3.__d && ++A3 < 25);
    h3.state = h3.__s, null != h3.getChildContext && (i4 = d(d({}, i4), h3.getChildContext())), S2 && !p3 && null != h3.getSnapshotBeforeUpdate && (_4 = h3.getSnapshotBeforeUpdate(v3, y3)), L2 = a3, null != a3 && a3.type === k && null == a3.key && (L2 = V(a3.props.children)), f4 = I(n2, w(L2) ? L2 : [L2], u4, t3, i4, r3, o3, e3, f4, c3, s3), h3.base = u4.__e, u4.__u &= -161, h3.__h.length && e3.push(h3), m3 && (h3.__E = h3.__ = null);
  } catch (n3) {
    if (u4.__v = null, c3 || null != o3) if (n3.then) {
      for (u4.__u |= c3 ? 160 : 128; f4 && 8 == f4.nodeType && f4.nextSibling; ) f4 = f4.nextSibling;
      o3[o3.indexOf(f4)] = null, u4.__e = f4;
    } else {
      for (T3 = o3.length; T3--; ) g(o3[T3]);
      z(u4);
    }
    else u4.__e = t3.__e, u4.__k = t3.__k, n3.then || z(u4);
    l.__e(n3, u4, t3);
  }
  else null == o3 && u4.__v == t3.__v ? (u4.__k = t3.__k, u4.__e = t3.__e) : f4 = u4.__e = q(t3.__e, u4, t3, i4, r3, o3, e3, c3, s3);
  return (a3 = l.diffed) && a3(u4), 128 & u4.__u ? void 0 : f4;
}
function z(n2) {
  n2 && n2.__c && (n2.__c.__e = true), n2 && n2.__k && n2.__k.forEach(z);
}
function N(n2, u4, t3) {
  for (var i4 = 0; i4 < t3.length; i4++) B(t3[i4], t3[++i4], t3[++i4]);
  l.__c && l.__c(u4, n2), n2.some(function(u5) {
    try {
      n2 = u5.__h, u5.__h = [], n2.some(function(n3) {
        n3.call(u5);
      });
    } catch (n3) {
      l.__e(n3, u5.__v);
    }
  });
}
function V(n2) {
  return "object" != typeof n2 || null == n2 || n2.__b && n2.__b > 0 ? n2 : w(n2) ? n2.map(V) : d({}, n2);
}
function q(u4, t3, i4, r3, o3, e3, f4, c3, s3) {
  var a3, h3, v3, y3, d3, _4, m3, b = i4.props, k3 = t3.props, x2 = t3.type;
  if ("svg" == x2 ? o3 = "http://www.w3.org/2000/svg" : "math" == x2 ? o3 = "http://www.w3.org/1998/Math/MathML" : o3 || (o3 = "http://www.w3.org/1999/xhtml"), null != e3) {
    for (a3 = 0; a3 < e3.length; a3++) if ((d3 = e3[a3]) && "setAttribute" in d3 == !!x2 && (x2 ? d3.localName == x2 : 3 == d3.nodeType)) {
      u4 = d3, e3[a3] = null;
      break;
    }
  }
  if (null == u4) {
    if (null == x2) return document.createTextNode(k3);
    u4 = document.createElementNS(o3, x2, k3.is && k3), c3 && (l.__m && l.__m(t3, e3), c3 = false), e3 = null;
  }
  if (null == x2) b === k3 || c3 && u4.data == k3 || (u4.data = k3);
  else {
    if (e3 = e3 && n.call(u4.childNodes), b = i4.props || p, !c3 && null != e3) for (b = {}, a3 = 0; a3 < u4.attributes.length; a3++) b[(d3 = u4.attributes[a3]).name] = d3.value;
    for (a3 in b) if (d3 = b[a3], "children" == a3) ;
    else if ("dangerouslySetInnerHTML" == a3) v3 = d3;
    else if (!(a3 in k3)) {
      if ("value" == a3 && "defaultValue" in k3 || "checked" == a3 && "defaultChecked" in k3) continue;
      j(u4, a3, null, d3, o3);
    }
    for (a3 in k3) d3 = k3[a3], "children" == a3 ? y3 = d3 : "dangerouslySetInnerHTML" == a3 ? h3 = d3 : "value" == a3 ? _4 = d3 : "checked" == a3 ? m3 = d3 : c3 && "function" != typeof d3 || b[a3] === d3 || j(u4, a3, d3, b[a3], o3);
    if (h3) c3 || v3 && (h3.__html == v3.__html || h3.__html == u4.innerHTML) || (u4.innerHTML = h3.__html), t3.__k = [];
    else if (v3 && (u4.innerHTML = ""), I("template" == t3.type ? u4.content : u4, w(y3) ? y3 : [y3], t3, i4, r3, "foreignObject" == x2 ? "http://www.w3.org/1999/xhtml" : o3, e3, f4, e3 ? e3[0] : i4.__k && S(i4, 0), c3, s3), null != e3) for (a3 = e3.length; a3--; ) g(e3[a3]);
    c3 || (a3 = "value", "progress" == x2 && null == _4 ? u4.removeAttribute("value") : null != _4 && (_4 !== u4[a3] || "progress" == x2 && !_4 || "option" == x2 && _4 != b[a3]) && j(u4, a3, _4, b[a3], o3), a3 = "checked", null != m3 && m3 != u4[a3] && j(u4, a3, m3, b[a3], o3));
  }
  return u4;
}
function B(n2, u4, t3) {
  try {
    if ("function" == typeof n2) {
      var i4 = "function" == typeof n2.__u;
      i4 && n2.__u(), i4 && null == u4 || (n2.__u = n2(u4));
    } else n2.current = u4;
  } catch (n3) {
    l.__e(n3, t3);
  }
}
function D(n2, u4, t3) {
  var i4, r3;
  if (l.unmount && l.unmount(n2), (i4 = n2.ref) && (i4.current && i4.current != n2.__e || B(i4, null, u4)), null != (i4 = n2.__c)) {
    if (i4.componentWillUnmount) try {
      i4.componentWillUnmount();
    } catch (n3) {
      l.__e(n3, u4);
    }
    i4.base = i4.__P = null;
  }
  if (i4 = n2.__k) for (r3 = 0; r3 < i4.length; r3++) i4[r3] && D(i4[r3], u4, t3 || "function" != typeof n2.type);
  t3 || g(n2.__e), n2.__c = n2.__ = n2.__e = void 0;
}
function E(n2, l3, u4) {
  return this.constructor(n2, u4);
}
function G(u4, t3, i4) {
  var r3, o3, e3, f4;
  t3 == document && (t3 = document.documentElement), l.__ && l.__(u4, t3), o3 = (r3 = "function" == typeof i4) ? null : i4 && i4.__k || t3.__k, e3 = [], f4 = [], O(t3, u4 = (!r3 && i4 || t3).__k = _(k, null, [u4]), o3 || p, p, t3.namespaceURI, !r3 && i4 ? [i4] : o3 ? null : t3.firstChild ? n.call(t3.childNodes) : null, e3, !r3 && i4 ? i4 : o3 ? o3.__e : t3.firstChild, r3, f4), N(e3, u4, f4);
}
n = v.slice, l = { __e: function(n2, l3, u4, t3) {
  for (var i4, r3, o3; l3 = l3.__; ) if ((i4 = l3.__c) && !i4.__) try {
    if ((r3 = i4.constructor) && null != r3.getDerivedStateFromError && (i4.setState(r3.getDerivedStateFromError(n2)), o3 = i4.__d), null != i4.componentDidCatch && (i4.componentDidCatch(n2, t3 || {}), o3 = i4.__d), o3) return i4.__E = i4;
  } catch (l4) {
    n2 = l4;
  }
  throw n2;
} }, u = 0, t = function(n2) {
  return null != n2 && null == n2.constructor;
}, x.prototype.setState = function(n2, l3) {
  var u4;
  u4 = null != this.__s && this.__s != this.state ? this.__s : this.__s = d({}, this.state), "function" == typeof n2 && (n2 = n2(d({}, u4), this.props)), n2 && d(u4, n2), null != n2 && this.__v && (l3 && this._sb.push(l3), M(this));
}, x.prototype.forceUpdate = function(n2) {
  this.__v && (this.__e = true, n2 && this.__h.push(n2), M(this));
}, x.prototype.render = k, i = [], o = "function" == typeof Promise ? Promise.prototype.then.bind(Promise.resolve()) : setTimeout, e = function(n2, l3) {
  return n2.__v.__b - l3.__v.__b;
}, $.__r = 0, f = /(PointerCapture)$|Capture$/i, c = 0, s = F(false), a = F(true), h = 0;

// node_modules/preact/hooks/dist/hooks.module.js
var t2;
var r2;
var u2;
var i2;
var o2 = 0;
var f2 = [];
var c2 = l;
var e2 = c2.__b;
var a2 = c2.__r;
var v2 = c2.diffed;
var l2 = c2.__c;
var m2 = c2.unmount;
var s2 = c2.__;
function p2(n2, t3) {
  c2.__h && c2.__h(r2, n2, o2 || t3), o2 = 0;
  var u4 = r2.__H || (r2.__H = { __: [], __h: [] });
  return n2 >= u4.__.length && u4.__.push({}), u4.__[n2];
}
function d2(n2) {
  return o2 = 1, h2(D2, n2);
}
function h2(n2, u4, i4) {
  var o3 = p2(t2++, 2);
  if (o3.t = n2, !o3.__c && (o3.__ = [i4 ? i4(u4) : D2(void 0, u4), function(n3) {
    var t3 = o3.__N ? o3.__N[0] : o3.__[0], r3 = o3.t(t3, n3);
    t3 !== r3 && (o3.__N = [r3, o3.__[1]], o3.__c.setState({}));
  }], o3.__c = r2, !r2.__f)) {
    var f4 = function(n3, t3, r3) {
      if (!o3.__c.__H) return true;
      var u5 = o3.__c.__H.__.filter(function(n4) {
        return !!n4.__c;
      });
      if (u5.every(function(n4) {
        return !n4.__N;
      })) return !c3 || c3.call(this, n3, t3, r3);
      var i5 = o3.__c.props !== n3;
      return u5.forEach(function(n4) {
        if (n4.__N) {
          var t4 = n4.__[0];
          n4.__ = n4.__N, n4.__N = void 0, t4 !== n4.__[0] && (i5 = true);
        }
      }), c3 && c3.call(this, n3, t3, r3) || i5;
    };
    r2.__f = true;
    var c3 = r2.shouldComponentUpdate, e3 = r2.componentWillUpdate;
    r2.componentWillUpdate = function(n3, t3, r3) {
      if (this.__e) {
        var u5 = c3;
        c3 = void 0, f4(n3, t3, r3), c3 = u5;
      }
      e3 && e3.call(this, n3, t3, r3);
    }, r2.shouldComponentUpdate = f4;
  }
  return o3.__N || o3.__;
}
function y2(n2, u4) {
  var i4 = p2(t2++, 3);
  !c2.__s && C2(i4.__H, u4) && (i4.__ = n2, i4.u = u4, r2.__H.__h.push(i4));
}
function _2(n2, u4) {
  var i4 = p2(t2++, 4);
  !c2.__s && C2(i4.__H, u4) && (i4.__ = n2, i4.u = u4, r2.__h.push(i4));
}
function A2(n2) {
  return o2 = 5, T2(function() {
    return { current: n2 };
  }, []);
}
function T2(n2, r3) {
  var u4 = p2(t2++, 7);
  return C2(u4.__H, r3) && (u4.__ = n2(), u4.__H = r3, u4.__h = n2), u4.__;
}
function j2() {
  for (var n2; n2 = f2.shift(); ) if (n2.__P && n2.__H) try {
    n2.__H.__h.forEach(z2), n2.__H.__h.forEach(B2), n2.__H.__h = [];
  } catch (t3) {
    n2.__H.__h = [], c2.__e(t3, n2.__v);
  }
}
c2.__b = function(n2) {
  r2 = null, e2 && e2(n2);
}, c2.__ = function(n2, t3) {
  n2 && t3.__k && t3.__k.__m && (n2.__m = t3.__k.__m), s2 && s2(n2, t3);
}, c2.__r = function(n2) {
  a2 && a2(n2), t2 = 0;
  var i4 = (r2 = n2.__c).__H;
  i4 && (u2 === r2 ? (i4.__h = [], r2.__h = [], i4.__.forEach(function(n3) {
    n3.__N && (n3.__ = n3.__N), n3.u = n3.__N = void 0;
  })) : (i4.__h.forEach(z2), i4.__h.forEach(B2), i4.__h = [], t2 = 0)), u2 = r2;
}, c2.diffed = function(n2) {
  v2 && v2(n2);
  var t3 = n2.__c;
  t3 && t3.__H && (t3.__H.__h.length && (1 !== f2.push(t3) && i2 === c2.requestAnimationFrame || ((i2 = c2.requestAnimationFrame) || w2)(j2)), t3.__H.__.forEach(function(n3) {
    n3.u && (n3.__H = n3.u), n3.u = void 0;
  })), u2 = r2 = null;
}, c2.__c = function(n2, t3) {
  t3.some(function(n3) {
    try {
      n3.__h.forEach(z2), n3.__h = n3.__h.filter(function(n4) {
        return !n4.__ || B2(n4);
      });
    } catch (r3) {
      t3.some(function(n4) {
        n4.__h && (n4.__h = []);
      }), t3 = [], c2.__e(r3, n3.__v);
    }
  }), l2 && l2(n2, t3);
}, c2.unmount = function(n2) {
  m2 && m2(n2);
  var t3, r3 = n2.__c;
  r3 && r3.__H && (r3.__H.__.forEach(function(n3) {
    try {
      z2(n3);
    } catch (n4) {
      t3 = n4;
    }
  }), r3.__H = void 0, t3 && c2.__e(t3, r3.__v));
};
var k2 = "function" == typeof requestAnimationFrame;
function w2(n2) {
  var t3, r3 = function() {
    clearTimeout(u4), k2 && cancelAnimationFrame(t3), setTimeout(n2);
  }, u4 = setTimeout(r3, 35);
  k2 && (t3 = requestAnimationFrame(r3));
}
function z2(n2) {
  var t3 = r2, u4 = n2.__c;
  "function" == typeof u4 && (n2.__c = void 0, u4()), r2 = t3;
}
function B2(n2) {
  var t3 = r2;
  n2.__c = n2.__(), r2 = t3;
}
function C2(n2, t3) {
  return !n2 || n2.length !== t3.length || t3.some(function(t4, r3) {
    return t4 !== n2[r3];
  });
}
function D2(n2, t3) {
  return "function" == typeof t3 ? t3(n2) : t3;
}

// src/model.ts
var state = {
  dataset: null,
  fatal: null,
  where: "",
  whereError: "",
  sort: "",
  order: "up",
  listGeneration: 0,
  episodeId: null,
  otherId: null,
  listOpen: true,
  drawer: null,
  theme: "auto",
  isDark: false,
  help: false,
  hidden: /* @__PURE__ */ new Set(),
  plotOrder: [],
  live: null,
  notice: null,
  checks: null,
  playing: false,
  speed: 1,
  momentsOf: null
};
var listeners = /* @__PURE__ */ new Set();
var systemDark = matchMedia("(prefers-color-scheme: dark)");
systemDark.addEventListener("change", () => set({}));
function set(patch) {
  Object.assign(state, patch);
  state.isDark = state.theme === "auto" ? systemDark.matches : state.theme === "dark";
  if (state.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = state.theme;
  for (const each of [...listeners]) each();
}
function onChange(heard) {
  listeners.add(heard);
  return () => listeners.delete(heard);
}
function useModel() {
  const [, again] = d2(0);
  y2(() => onChange(() => again((n2) => n2 + 1)), []);
  return state;
}
var noticeTimer = 0;
function say(text, hint = "", bad = false) {
  clearTimeout(noticeTimer);
  set({ notice: { text, hint, bad } });
  noticeTimer = window.setTimeout(() => set({ notice: null }), bad ? 9e3 : 3500);
}
var named = (id) => id.replace(/^0{4,}(?=\d)/, "");
var PALETTE = 8;
function colourOf(name, channel) {
  let hash = 0;
  for (let i4 = 0; i4 < name.length; i4++) hash = hash * 31 + name.charCodeAt(i4) >>> 0;
  return getComputedStyle(document.documentElement).getPropertyValue(`--line-${(hash + channel) % PALETTE}`).trim();
}
function seconds(ns, digits = 3) {
  return (ns / 1e9).toFixed(digits);
}
function spoken(ns) {
  const size = Math.abs(ns);
  if (size < 1e3) return `${ns} ns`;
  if (size < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (size < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
}
function short(value, digits = 5) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(Math.min(digits - 1, 2));
  return String(Number(value.toPrecision(digits)));
}
function bytes(count) {
  if (count < 1024) return `${count} B`;
  const power = Math.min(Math.floor(Math.log2(count) / 10), 4);
  return `${(count / 1024 ** power).toFixed(1)} ${"KMGT"[power - 1]}iB`;
}

// src/clock.ts
var Clock = class {
  base = 0n;
  length = 0;
  at = 0;
  from = 0;
  to = 1;
  /** What the address bar, or a jump from elsewhere, says of time and zoom; for the episode that is opened next. */
  wanted = null;
  moved = /* @__PURE__ */ new Set();
  zoomed = /* @__PURE__ */ new Set();
  last = 0;
  /** Take the bounds of an episode; of one that was trimmed or grew, the cursor stays at its moment. */
  open(start2, stop, isSame) {
    const at2 = isSame ? this.at + Number(this.base - start2) : this.at;
    this.base = start2;
    this.length = Math.max(1, Number(stop - start2));
    this.at = Math.min(Math.max(at2, 0), this.length);
    this.from = 0;
    this.to = this.length;
  }
  /** Everything that shows the time places itself again. */
  tell() {
    for (const each of [...this.moved]) each();
  }
  get time() {
    return this.base + BigInt(Math.round(this.at));
  }
  onMove(heard) {
    this.moved.add(heard);
    return () => this.moved.delete(heard);
  }
  onZoom(heard) {
    this.zoomed.add(heard);
    return () => this.zoomed.delete(heard);
  }
  go(at2, follow2 = true) {
    this.at = Math.round(Math.min(Math.max(at2, 0), this.length));
    if (follow2 && (this.at < this.from || this.at > this.to)) {
      const width = this.to - this.from;
      const from = Math.min(Math.max(this.at - width / 10, 0), this.length - width);
      this.show(from, from + width);
    }
    this.tell();
  }
  show(from, to) {
    const width = Math.min(Math.max(to - from, 1e3), this.length);
    const start2 = Math.min(Math.max(from, 0), this.length - width);
    this.from = start2;
    this.to = start2 + width;
    for (const each of [...this.zoomed]) each();
  }
  zoom(factor, around = this.at) {
    const left = (around - this.from) * factor;
    const right = (this.to - around) * factor;
    this.show(around - left, around + right);
  }
  /** Move the window by a share of its width. */
  pan(share2) {
    const by = share2 * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }
  play(on2 = !state.playing) {
    if (on2 && this.at >= this.length) this.go(0);
    set({ playing: on2 });
    this.last = performance.now();
    if (on2) requestAnimationFrame(() => this.tick());
  }
  tick() {
    if (!state.playing) return;
    const now = performance.now();
    const next = this.at + (now - this.last) * 1e6 * state.speed;
    this.last = now;
    this.go(next);
    if (next >= this.length) set({ playing: false });
    else requestAnimationFrame(() => this.tick());
  }
};
var clock = new Clock();

// ../packages/wshard/src/errors.ts
var WShardError = class extends Error {
  code = "wshard";
  /** The block that is wrong, where it is one. */
  block;
  hint;
  constructor(fact, block, hint = "") {
    super(block === void 0 ? fact : `block '${block}': ${fact}`);
    this.name = "WShardError";
    this.block = block;
    this.hint = hint;
  }
};
var FormatError = class extends WShardError {
  code = "format";
};
var BadMagicError = class extends FormatError {
  code = "bad_magic";
};
var UnsupportedVersionError = class extends FormatError {
  code = "unsupported_version";
};
var TruncatedError = class extends FormatError {
  code = "truncated";
};
var ChecksumError = class extends FormatError {
  code = "checksum";
};
var CorruptLayoutError = class extends FormatError {
  code = "corrupt_layout";
};
var LimitExceededError = class extends FormatError {
  code = "limit_exceeded";
};
var NotFoundError = class extends WShardError {
  code = "not_found";
};
var ChangedError = class extends WShardError {
  code = "conflict";
};
var UnavailableError = class extends WShardError {
  code = "unavailable";
};
function corrupt(fact, block, hint) {
  throw new CorruptLayoutError(fact, block, hint);
}
function about(block, work) {
  try {
    return work();
  } catch (error) {
    if (error instanceof FormatError && error.block === void 0) {
      throw new error.constructor(error.message, block, error.hint);
    }
    throw error;
  }
}

// ../packages/wshard/src/bytes.ts
function sum(values) {
  return values.reduce((total, each) => total + each, 0);
}
function joinBytes(parts) {
  if (parts.length === 1) return parts[0];
  const out = new Uint8Array(sum(parts.map((each) => each.length)));
  let at2 = 0;
  for (const part of parts) {
    out.set(part, at2);
    at2 += part.length;
  }
  return out;
}
function viewOf(data) {
  return new DataView(data.buffer, data.byteOffset, data.byteLength);
}
var UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
function utf8(data, what) {
  try {
    return UTF8.decode(data);
  } catch {
    return corrupt(what);
  }
}
function checkRange(start2, end, total, what) {
  if (!(start2 >= 0 && start2 <= end && end <= total)) throw new RangeError(`[${start2}, ${end}) of ${total} ${what}`);
}

// ../packages/wshard/src/checksum.ts
var tables;
function makeTables() {
  const t3 = new Uint32Array(2048);
  for (let i4 = 0; i4 < 2048; i4++) {
    let value = i4;
    if (i4 < 256) for (let bit = 0; bit < 8; bit++) value = value >>> 1 ^ (value & 1 && 2197175160);
    else value = t3[i4 - 256] >>> 8 ^ t3[t3[i4 - 256] & 255];
    t3[i4] = value;
  }
  return t3;
}
function crc32c(data, before = 0) {
  tables ??= makeTables();
  const t3 = tables;
  const b = data;
  let crc = ~before;
  let at2 = 0;
  for (const end = data.length - 7; at2 < end; at2 += 8) {
    const low2 = crc ^ (b[at2] | b[at2 + 1] << 8 | b[at2 + 2] << 16 | b[at2 + 3] << 24);
    crc = t3[1792 + (low2 & 255)] ^ t3[1536 + (low2 >>> 8 & 255)] ^ t3[1280 + (low2 >>> 16 & 255)] ^ t3[1024 + (low2 >>> 24)] ^ t3[768 + b[at2 + 4]] ^ t3[512 + b[at2 + 5]] ^ t3[256 + b[at2 + 6]] ^ t3[b[at2 + 7]];
  }
  for (; at2 < data.length; at2++) crc = crc >>> 8 ^ t3[(crc ^ b[at2]) & 255];
  return ~crc >>> 0;
}
var P1 = 0x9e3779b185ebca87n;
var P2 = 0xc2b2ae3d27d4eb4fn;
var P3 = 0x165667b19e3779f9n;
var P4 = 0x85ebca77c2b2ae63n;
var P5 = 0x27d4eb2f165667c5n;
var cut = (value) => BigInt.asUintN(64, value);
var rotate = (value, bits) => cut(value << bits) | value >> 64n - bits;
var round = (sum2, input) => cut(rotate(cut(sum2 + input * P2), 31n) * P1);
var high = 0;
var low = 0;
function multiply(ah, al, bh, bl) {
  const a0 = al & 65535;
  const a1 = al >>> 16;
  const b0 = bl & 65535;
  const b1 = bl >>> 16;
  const low0 = a0 * b0;
  const mid = a1 * b0 + (low0 >>> 16);
  const mid2 = a0 * b1 + mid % 65536;
  const carried = a1 * b1 + Math.floor(mid / 65536) + Math.floor(mid2 / 65536);
  low = ((mid2 & 65535) << 16 | low0 & 65535) >>> 0;
  high = Math.imul(ah, bl) + Math.imul(al, bh) + (carried | 0) >>> 0;
}
function stripes(view) {
  const h3 = [1625958382, 3266489917, 0, 1640531534];
  const l3 = [2915087830, 668265295, 0, 2048144761];
  for (let at2 = 0; at2 + 32 <= view.byteLength; at2 += 32) {
    for (let lane = 0; lane < 4; lane++) {
      multiply(view.getUint32(at2 + lane * 8 + 4, true), view.getUint32(at2 + lane * 8, true), 3266489917, 668265295);
      low += l3[lane];
      high += h3[lane] + (low > 4294967295 ? 1 : 0);
      multiply(high << 31 | low >>> 1, (low << 31 | high >>> 1) >>> 0, 2654435761, 2246822535);
      h3[lane] = high;
      l3[lane] = low;
    }
  }
  return h3.map((each, lane) => BigInt(each) << 32n | BigInt(l3[lane]));
}
function xxh64(data) {
  const view = viewOf(data);
  const size = data.length;
  let at2 = size - size % 32;
  let sum2 = P5;
  if (at2) {
    const lanes = stripes(view);
    sum2 = cut([1n, 7n, 12n, 18n].reduce((total, bits, lane) => total + rotate(lanes[lane], bits), 0n));
    for (const each of lanes) sum2 = cut((sum2 ^ round(0n, each)) * P1 + P4);
  }
  sum2 += BigInt(size);
  for (; at2 + 8 <= size; at2 += 8) sum2 = cut(rotate(cut(sum2) ^ round(0n, view.getBigUint64(at2, true)), 27n) * P1 + P4);
  if (at2 + 4 <= size) {
    sum2 = cut(rotate(cut(sum2) ^ cut(BigInt(view.getUint32(at2, true)) * P1), 23n) * P2 + P3);
    at2 += 4;
  }
  for (; at2 < size; at2++) sum2 = cut(rotate(cut(sum2) ^ cut(BigInt(data[at2]) * P5), 11n) * P1);
  sum2 = cut(sum2);
  sum2 = cut((sum2 ^ sum2 >> 33n) * P2);
  sum2 = cut((sum2 ^ sum2 >> 29n) * P3);
  return sum2 ^ sum2 >> 32n;
}
function fnv1a64(data) {
  return data.reduce((sum2, byte) => cut((sum2 ^ BigInt(byte)) * 0x100000001b3n), 0xcbf29ce484222325n);
}

// ../packages/wshard/src/dtype.ts
var ARRAYS = {
  f64: Float64Array,
  f32: Float32Array,
  f16: Uint16Array,
  bf16: Uint16Array,
  i64: BigInt64Array,
  i32: Int32Array,
  i16: Int16Array,
  i8: Int8Array,
  u64: BigUint64Array,
  u32: Uint32Array,
  u16: Uint16Array,
  u8: Uint8Array,
  bool: Uint8Array
};
var DTYPES = Object.fromEntries(
  Object.entries(ARRAYS).map(([name, kind]) => [name, kind.BYTES_PER_ELEMENT])
);
function typedArray(dtype, bytes3) {
  const size = DTYPES[dtype];
  const aligned = bytes3.byteOffset % size === 0 ? bytes3 : bytes3.slice();
  return new ARRAYS[dtype](aligned.buffer, aligned.byteOffset, aligned.byteLength / size);
}
function toFloat32(dtype, bytes3) {
  const values = typedArray(dtype, bytes3);
  if (values instanceof Float32Array) return values;
  const out = new Float32Array(values.length);
  if (dtype === "bf16") {
    const bits = new Uint32Array(out.buffer);
    for (let i4 = 0; i4 < bits.length; i4++) bits[i4] = values[i4] << 16;
  } else if (dtype === "f16") for (let i4 = 0; i4 < out.length; i4++) out[i4] = halfToFloat(values[i4]);
  else for (let i4 = 0; i4 < out.length; i4++) out[i4] = Number(values[i4]);
  return out;
}
function halfToFloat(bits) {
  const exponent = bits >>> 10 & 31;
  const fraction = bits & 1023;
  const sign2 = bits & 32768 ? -1 : 1;
  if (exponent === 31) return fraction ? Number.NaN : sign2 * Number.POSITIVE_INFINITY;
  return sign2 * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// ../packages/wshard/src/layout.ts
var MAGIC = "SHRD";
var VERSION = 2;
var HEADER_BYTES = 64;
var ENTRY_BYTES = 48;
var ALIGNMENTS = [0, 16, 32, 64];
var MARK = "WDC1";
var MARKED_HEADER_BYTES = 48;
var FLAGS_RAW = 0;
var FLAGS_DEFAULT = 1;
var FLAGS_ZSTD = 3;
var FLAGS_LZ4 = 5;
var FLAGS_SEEKABLE = 11;
var MAX_ENTRIES = 1e7;
var MAX_STRING_TABLE_BYTES = 1e8;
var MAX_NAME_BYTES = 4096;
var MAX_BLOCK_BYTES = 64 * 2 ** 30;
var MAX_EXPANDED_BYTES = 2 ** 30;
var MAX_LARGE_RATIO = 256;
var PIECES_FROM_BYTES = 1 << 20;
var PIECE_BYTES = 256 << 10;
var FRAME_BYTES = 64 << 10;
var SKIPPABLE_MAGIC = 407710302;
var SEEK_TABLE_MAGIC = 2408770225;
var MAX_FRAMES = 1 << 27;
var PIECES_PREFIX = "aux/crc32c/";
var SEEK_PREFIX = "aux/seek/";

// ../packages/wshard/src/json.ts
var MAX_JSON_BYTES = 64 << 20;
var MAX_DEPTH = 500;
var NUMBER = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;
var SPACE = /[ \t\n\r]*/y;
var PLAIN = /[^"\\\u0000-\u001f]*/y;
var WORD = /null|true|false/y;
var ESCAPE = /\\(?:["\\/bfnrt]|u[\da-fA-F]{4})/y;
var fractions = /* @__PURE__ */ new WeakMap();
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
function parseJson(data) {
  if (data.length > MAX_JSON_BYTES) throw new LimitExceededError(`too large: ${data.length} bytes of JSON`);
  const text = utf8(data, "invalid JSON (not UTF-8)").replace(/^\ufeff/, "");
  let at2 = 0;
  const fail = (what) => {
    corrupt(`invalid JSON (${what} at ${at2})`);
  };
  const match = (pattern) => {
    pattern.lastIndex = at2;
    const found = pattern.exec(text);
    if (found) at2 += found[0].length;
    return found;
  };
  const parseString = () => {
    const start2 = at2++;
    do
      match(PLAIN);
    while (match(ESCAPE));
    if (text[at2++] !== '"') fail("a bad string");
    return JSON.parse(text.slice(start2, at2));
  };
  const store = (holder, key, depth) => {
    let found;
    match(SPACE);
    const next = text[at2];
    const word = match(WORD);
    if (word) found = JSON.parse(word[0]);
    else if (next === "{") found = parseObject(depth);
    else if (next === "[") found = parseArray(depth);
    else if (next === '"') found = parseString();
    else {
      const number = match(NUMBER) ?? fail("a value was expected");
      found = Number(number[0]);
      if (number[1] !== void 0 || number[2] !== void 0) {
        const keys = fractions.get(holder) ?? /* @__PURE__ */ new Set();
        fractions.set(holder, keys.add(String(key)));
      } else if (!Number.isSafeInteger(found)) found = BigInt(number[0]);
    }
    Object.defineProperty(holder, key, { value: found, writable: true, enumerable: true, configurable: true });
    match(SPACE);
  };
  const items = (close, depth, one) => {
    if (depth > MAX_DEPTH) fail("nested too deep");
    at2++;
    match(SPACE);
    if (text[at2] === close) at2++;
    else
      for (; ; ) {
        one();
        const next = text[at2++];
        if (next === close) break;
        if (next !== ",") fail(`',' or '${close}' was expected`);
      }
  };
  const parseArray = (depth) => {
    const out = [];
    items("]", depth, () => store(out, out.length, depth + 1));
    return out;
  };
  const parseObject = (depth) => {
    const out = {};
    items("}", depth, () => {
      match(SPACE);
      if (text[at2] !== '"') fail("a key was expected");
      const key = parseString();
      if (Object.hasOwn(out, key)) fail("a key twice");
      match(SPACE);
      if (text[at2++] !== ":") fail("':' was expected");
      store(out, key, depth + 1);
    });
    return out;
  };
  const root = [];
  store(root, 0, 0);
  if (at2 !== text.length) fail("more than one value");
  return root[0];
}
function parseJsonObject(data) {
  const value = parseJson(data);
  if (!isObject(value)) corrupt("not a JSON object");
  return value;
}

// node_modules/fzstd/esm/index.mjs
var ab = ArrayBuffer;
var u8 = Uint8Array;
var u16 = Uint16Array;
var i16 = Int16Array;
var i32 = Int32Array;
var slc = function(v3, s3, e3) {
  if (u8.prototype.slice)
    return u8.prototype.slice.call(v3, s3, e3);
  if (s3 == null || s3 < 0)
    s3 = 0;
  if (e3 == null || e3 > v3.length)
    e3 = v3.length;
  var n2 = new u8(e3 - s3);
  n2.set(v3.subarray(s3, e3));
  return n2;
};
var fill = function(v3, n2, s3, e3) {
  if (u8.prototype.fill)
    return u8.prototype.fill.call(v3, n2, s3, e3);
  if (s3 == null || s3 < 0)
    s3 = 0;
  if (e3 == null || e3 > v3.length)
    e3 = v3.length;
  for (; s3 < e3; ++s3)
    v3[s3] = n2;
  return v3;
};
var cpw = function(v3, t3, s3, e3) {
  if (u8.prototype.copyWithin)
    return u8.prototype.copyWithin.call(v3, t3, s3, e3);
  if (s3 == null || s3 < 0)
    s3 = 0;
  if (e3 == null || e3 > v3.length)
    e3 = v3.length;
  while (s3 < e3) {
    v3[t3++] = v3[s3++];
  }
};
var ec = [
  "invalid zstd data",
  "window size too large (>2046MB)",
  "invalid block type",
  "FSE accuracy too high",
  "match distance too far back",
  "unexpected EOF"
];
var err = function(ind, msg, nt) {
  var e3 = new Error(msg || ec[ind]);
  e3.code = ind;
  if (Error.captureStackTrace)
    Error.captureStackTrace(e3, err);
  if (!nt)
    throw e3;
  return e3;
};
var rb = function(d3, b, n2) {
  var i4 = 0, o3 = 0;
  for (; i4 < n2; ++i4)
    o3 |= d3[b++] << (i4 << 3);
  return o3;
};
var b4 = function(d3, b) {
  return (d3[b] | d3[b + 1] << 8 | d3[b + 2] << 16 | d3[b + 3] << 24) >>> 0;
};
var rzfh = function(dat, w3) {
  var n3 = dat[0] | dat[1] << 8 | dat[2] << 16;
  if (n3 == 3126568 && dat[3] == 253) {
    var flg = dat[4];
    var ss2 = flg >> 5 & 1, cc = flg >> 2 & 1, df = flg & 3, fcf = flg >> 6;
    if (flg & 8)
      err(0);
    var bt = 6 - ss2;
    var db = df == 3 ? 4 : df;
    var di = rb(dat, bt, db);
    bt += db;
    var fsb = fcf ? 1 << fcf : ss2;
    var fss = rb(dat, bt, fsb) + (fcf == 1 && 256);
    var ws = fss;
    if (!ss2) {
      var wb = 1 << 10 + (dat[5] >> 3);
      ws = wb + (wb >> 3) * (dat[5] & 7);
    }
    if (ws > 2145386496)
      err(1);
    var buf = new u8((w3 == 1 ? fss || ws : w3 ? 0 : ws) + 12);
    buf[0] = 1, buf[4] = 4, buf[8] = 8;
    return {
      b: bt + fsb,
      y: 0,
      l: 0,
      d: di,
      w: w3 && w3 != 1 ? w3 : buf.subarray(12),
      e: ws,
      o: new i32(buf.buffer, 0, 3),
      u: fss,
      c: cc,
      m: Math.min(131072, ws)
    };
  } else if ((n3 >> 4 | dat[3] << 20) == 25481893) {
    return b4(dat, 4) + 8;
  }
  err(0);
};
var msb = function(val) {
  var bits = 0;
  for (; 1 << bits <= val; ++bits)
    ;
  return bits - 1;
};
var rfse = function(dat, bt, mal) {
  var tpos = (bt << 3) + 4;
  var al = (dat[bt] & 15) + 5;
  if (al > mal)
    err(3);
  var sz = 1 << al;
  var probs = sz, sym = -1, re = -1, i4 = -1, ht = sz;
  var buf = new ab(512 + (sz << 2));
  var freq = new i16(buf, 0, 256);
  var dstate = new u16(buf, 0, 256);
  var nstate = new u16(buf, 512, sz);
  var bb1 = 512 + (sz << 1);
  var syms = new u8(buf, bb1, sz);
  var nbits = new u8(buf, bb1 + sz);
  while (sym < 255 && probs > 0) {
    var bits = msb(probs + 1);
    var cbt = tpos >> 3;
    var msk = (1 << bits + 1) - 1;
    var val = (dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16) >> (tpos & 7) & msk;
    var msk1fb = (1 << bits) - 1;
    var msv = msk - probs - 1;
    var sval = val & msk1fb;
    if (sval < msv)
      tpos += bits, val = sval;
    else {
      tpos += bits + 1;
      if (val > msk1fb)
        val -= msv;
    }
    freq[++sym] = --val;
    if (val == -1) {
      probs += val;
      syms[--ht] = sym;
    } else
      probs -= val;
    if (!val) {
      do {
        var rbt = tpos >> 3;
        re = (dat[rbt] | dat[rbt + 1] << 8) >> (tpos & 7) & 3;
        tpos += 2;
        sym += re;
      } while (re == 3);
    }
  }
  if (sym > 255 || probs)
    err(0);
  var sympos = 0;
  var sstep = (sz >> 1) + (sz >> 3) + 3;
  var smask = sz - 1;
  for (var s3 = 0; s3 <= sym; ++s3) {
    var sf = freq[s3];
    if (sf < 1) {
      dstate[s3] = -sf;
      continue;
    }
    for (i4 = 0; i4 < sf; ++i4) {
      syms[sympos] = s3;
      do {
        sympos = sympos + sstep & smask;
      } while (sympos >= ht);
    }
  }
  if (sympos)
    err(0);
  for (i4 = 0; i4 < sz; ++i4) {
    var ns = dstate[syms[i4]]++;
    var nb = nbits[i4] = al - msb(ns);
    nstate[i4] = (ns << nb) - sz;
  }
  return [tpos + 7 >> 3, {
    b: al,
    s: syms,
    n: nbits,
    t: nstate
  }];
};
var rhu = function(dat, bt) {
  var i4 = 0, wc = -1;
  var buf = new u8(292), hb = dat[bt];
  var hw = buf.subarray(0, 256);
  var rc = buf.subarray(256, 268);
  var ri = new u16(buf.buffer, 268);
  if (hb < 128) {
    var _a = rfse(dat, bt + 1, 6), ebt = _a[0], fdt = _a[1];
    bt += hb;
    var epos = ebt << 3;
    var lb = dat[bt];
    if (!lb)
      err(0);
    var st1 = 0, st2 = 0, btr1 = fdt.b, btr2 = btr1;
    var fpos = (++bt << 3) - 8 + msb(lb);
    for (; ; ) {
      fpos -= btr1;
      if (fpos < epos)
        break;
      var cbt = fpos >> 3;
      st1 += (dat[cbt] | dat[cbt + 1] << 8) >> (fpos & 7) & (1 << btr1) - 1;
      hw[++wc] = fdt.s[st1];
      fpos -= btr2;
      if (fpos < epos)
        break;
      cbt = fpos >> 3;
      st2 += (dat[cbt] | dat[cbt + 1] << 8) >> (fpos & 7) & (1 << btr2) - 1;
      hw[++wc] = fdt.s[st2];
      btr1 = fdt.n[st1];
      st1 = fdt.t[st1];
      btr2 = fdt.n[st2];
      st2 = fdt.t[st2];
    }
    if (++wc > 255)
      err(0);
  } else {
    wc = hb - 127;
    for (; i4 < wc; i4 += 2) {
      var byte = dat[++bt];
      hw[i4] = byte >> 4;
      hw[i4 + 1] = byte & 15;
    }
    ++bt;
  }
  var wes = 0;
  for (i4 = 0; i4 < wc; ++i4) {
    var wt = hw[i4];
    if (wt > 11)
      err(0);
    wes += wt && 1 << wt - 1;
  }
  var mb = msb(wes) + 1;
  var ts = 1 << mb;
  var rem = ts - wes;
  if (rem & rem - 1)
    err(0);
  hw[wc++] = msb(rem) + 1;
  for (i4 = 0; i4 < wc; ++i4) {
    var wt = hw[i4];
    ++rc[hw[i4] = wt && mb + 1 - wt];
  }
  var hbuf = new u8(ts << 1);
  var syms = hbuf.subarray(0, ts), nb = hbuf.subarray(ts);
  ri[mb] = 0;
  for (i4 = mb; i4 > 0; --i4) {
    var pv = ri[i4];
    fill(nb, i4, pv, ri[i4 - 1] = pv + rc[i4] * (1 << mb - i4));
  }
  if (ri[0] != ts)
    err(0);
  for (i4 = 0; i4 < wc; ++i4) {
    var bits = hw[i4];
    if (bits) {
      var code = ri[bits];
      fill(syms, i4, code, ri[bits] = code + (1 << mb - bits));
    }
  }
  return [bt, {
    n: nb,
    b: mb,
    s: syms
  }];
};
var dllt = rfse(/* @__PURE__ */ new u8([
  81,
  16,
  99,
  140,
  49,
  198,
  24,
  99,
  12,
  33,
  196,
  24,
  99,
  102,
  102,
  134,
  70,
  146,
  4
]), 0, 6)[1];
var dmlt = rfse(/* @__PURE__ */ new u8([
  33,
  20,
  196,
  24,
  99,
  140,
  33,
  132,
  16,
  66,
  8,
  33,
  132,
  16,
  66,
  8,
  33,
  68,
  68,
  68,
  68,
  68,
  68,
  68,
  68,
  36,
  9
]), 0, 6)[1];
var doct = rfse(/* @__PURE__ */ new u8([
  32,
  132,
  16,
  66,
  102,
  70,
  68,
  68,
  68,
  68,
  36,
  73,
  2
]), 0, 5)[1];
var b2bl = function(b, s3) {
  var len = b.length, bl = new i32(len);
  for (var i4 = 0; i4 < len; ++i4) {
    bl[i4] = s3;
    s3 += 1 << b[i4];
  }
  return bl;
};
var llb = /* @__PURE__ */ new u8((/* @__PURE__ */ new i32([
  0,
  0,
  0,
  0,
  16843009,
  50528770,
  134678020,
  202050057,
  269422093
])).buffer, 0, 36);
var llbl = /* @__PURE__ */ b2bl(llb, 0);
var mlb = /* @__PURE__ */ new u8((/* @__PURE__ */ new i32([
  0,
  0,
  0,
  0,
  0,
  0,
  0,
  0,
  16843009,
  50528770,
  117769220,
  185207048,
  252579084,
  16
])).buffer, 0, 53);
var mlbl = /* @__PURE__ */ b2bl(mlb, 3);
var dhu = function(dat, out, hu) {
  var len = dat.length, ss2 = out.length, lb = dat[len - 1], msk = (1 << hu.b) - 1, eb = -hu.b;
  if (!lb)
    err(0);
  var st = 0, btr = hu.b, pos = (len << 3) - 8 + msb(lb) - btr, i4 = -1;
  for (; pos > eb && i4 < ss2; ) {
    var cbt = pos >> 3;
    var val = (dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16) >> (pos & 7);
    st = (st << btr | val) & msk;
    out[++i4] = hu.s[st];
    pos -= btr = hu.n[st];
  }
  if (pos != eb || i4 + 1 != ss2)
    err(0);
};
var dhu4 = function(dat, out, hu) {
  var bt = 6;
  var ss2 = out.length, sz1 = ss2 + 3 >> 2, sz2 = sz1 << 1, sz3 = sz1 + sz2;
  dhu(dat.subarray(bt, bt += dat[0] | dat[1] << 8), out.subarray(0, sz1), hu);
  dhu(dat.subarray(bt, bt += dat[2] | dat[3] << 8), out.subarray(sz1, sz2), hu);
  dhu(dat.subarray(bt, bt += dat[4] | dat[5] << 8), out.subarray(sz2, sz3), hu);
  dhu(dat.subarray(bt), out.subarray(sz3), hu);
};
var rzb = function(dat, st, out) {
  var _a;
  var bt = st.b;
  var b0 = dat[bt], btype = b0 >> 1 & 3;
  st.l = b0 & 1;
  var sz = b0 >> 3 | dat[bt + 1] << 5 | dat[bt + 2] << 13;
  var ebt = (bt += 3) + sz;
  if (btype == 1) {
    if (bt >= dat.length)
      return;
    st.b = bt + 1;
    if (out) {
      fill(out, dat[bt], st.y, st.y += sz);
      return out;
    }
    return fill(new u8(sz), dat[bt]);
  }
  if (ebt > dat.length)
    return;
  if (btype == 0) {
    st.b = ebt;
    if (out) {
      out.set(dat.subarray(bt, ebt), st.y);
      st.y += sz;
      return out;
    }
    return slc(dat, bt, ebt);
  }
  if (btype == 2) {
    var b3 = dat[bt], lbt = b3 & 3, sf = b3 >> 2 & 3;
    var lss = b3 >> 4, lcs = 0, s4 = 0;
    if (lbt < 2) {
      if (sf & 1)
        lss |= dat[++bt] << 4 | (sf & 2 && dat[++bt] << 12);
      else
        lss = b3 >> 3;
    } else {
      s4 = sf;
      if (sf < 2)
        lss |= (dat[++bt] & 63) << 4, lcs = dat[bt] >> 6 | dat[++bt] << 2;
      else if (sf == 2)
        lss |= dat[++bt] << 4 | (dat[++bt] & 3) << 12, lcs = dat[bt] >> 2 | dat[++bt] << 6;
      else
        lss |= dat[++bt] << 4 | (dat[++bt] & 63) << 12, lcs = dat[bt] >> 6 | dat[++bt] << 2 | dat[++bt] << 10;
    }
    ++bt;
    var buf = out ? out.subarray(st.y, st.y + st.m) : new u8(st.m);
    var spl = buf.length - lss;
    if (lbt == 0)
      buf.set(dat.subarray(bt, bt += lss), spl);
    else if (lbt == 1)
      fill(buf, dat[bt++], spl);
    else {
      var hu = st.h;
      if (lbt == 2) {
        var hud = rhu(dat, bt);
        lcs += bt - (bt = hud[0]);
        st.h = hu = hud[1];
      } else if (!hu)
        err(0);
      (s4 ? dhu4 : dhu)(dat.subarray(bt, bt += lcs), buf.subarray(spl), hu);
    }
    var ns = dat[bt++];
    if (ns) {
      if (ns == 255)
        ns = (dat[bt++] | dat[bt++] << 8) + 32512;
      else if (ns > 127)
        ns = ns - 128 << 8 | dat[bt++];
      var scm = dat[bt++];
      if (scm & 3)
        err(0);
      var dts = [dmlt, doct, dllt];
      for (var i4 = 2; i4 > -1; --i4) {
        var md2 = scm >> (i4 << 1) + 2 & 3;
        if (md2 == 1) {
          var rbuf = new u8([0, 0, dat[bt++]]);
          dts[i4] = {
            s: rbuf.subarray(2, 3),
            n: rbuf.subarray(0, 1),
            t: new u16(rbuf.buffer, 0, 1),
            b: 0
          };
        } else if (md2 == 2) {
          _a = rfse(dat, bt, 9 - (i4 & 1)), bt = _a[0], dts[i4] = _a[1];
        } else if (md2 == 3) {
          if (!st.t)
            err(0);
          dts[i4] = st.t[i4];
        }
      }
      var _b = st.t = dts, mlt = _b[0], oct = _b[1], llt = _b[2];
      var lb = dat[ebt - 1];
      if (!lb)
        err(0);
      var spos = (ebt << 3) - 8 + msb(lb) - llt.b, cbt = spos >> 3, oubt = 0;
      var lst = (dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << llt.b) - 1;
      cbt = (spos -= oct.b) >> 3;
      var ost = (dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << oct.b) - 1;
      cbt = (spos -= mlt.b) >> 3;
      var mst = (dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << mlt.b) - 1;
      for (++ns; --ns; ) {
        var llc = llt.s[lst];
        var lbtr = llt.n[lst];
        var mlc = mlt.s[mst];
        var mbtr = mlt.n[mst];
        var ofc = oct.s[ost];
        var obtr = oct.n[ost];
        cbt = (spos -= ofc) >> 3;
        var ofp = 1 << ofc;
        var off2 = ofp + ((dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16 | dat[cbt + 3] << 24) >>> (spos & 7) & ofp - 1);
        cbt = (spos -= mlb[mlc]) >> 3;
        var ml = mlbl[mlc] + ((dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16) >> (spos & 7) & (1 << mlb[mlc]) - 1);
        cbt = (spos -= llb[llc]) >> 3;
        var ll = llbl[llc] + ((dat[cbt] | dat[cbt + 1] << 8 | dat[cbt + 2] << 16) >> (spos & 7) & (1 << llb[llc]) - 1);
        cbt = (spos -= lbtr) >> 3;
        lst = llt.t[lst] + ((dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << lbtr) - 1);
        cbt = (spos -= mbtr) >> 3;
        mst = mlt.t[mst] + ((dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << mbtr) - 1);
        cbt = (spos -= obtr) >> 3;
        ost = oct.t[ost] + ((dat[cbt] | dat[cbt + 1] << 8) >> (spos & 7) & (1 << obtr) - 1);
        if (off2 > 3) {
          st.o[2] = st.o[1];
          st.o[1] = st.o[0];
          st.o[0] = off2 -= 3;
        } else {
          var idx = off2 - (ll != 0);
          if (idx) {
            off2 = idx == 3 ? st.o[0] - 1 : st.o[idx];
            if (idx > 1)
              st.o[2] = st.o[1];
            st.o[1] = st.o[0];
            st.o[0] = off2;
          } else
            off2 = st.o[0];
        }
        for (var i4 = 0; i4 < ll; ++i4) {
          buf[oubt + i4] = buf[spl + i4];
        }
        oubt += ll, spl += ll;
        var stin = oubt - off2;
        if (stin < 0) {
          var len = -stin;
          var bs = st.e + stin;
          if (len > ml)
            len = ml;
          for (var i4 = 0; i4 < len; ++i4) {
            buf[oubt + i4] = st.w[bs + i4];
          }
          oubt += len, ml -= len, stin = 0;
        }
        for (var i4 = 0; i4 < ml; ++i4) {
          buf[oubt + i4] = buf[stin + i4];
        }
        oubt += ml;
      }
      if (oubt != spl) {
        while (spl < buf.length) {
          buf[oubt++] = buf[spl++];
        }
      } else
        oubt = buf.length;
      if (out)
        st.y += oubt;
      else
        buf = slc(buf, 0, oubt);
    } else if (out) {
      st.y += lss;
      if (spl) {
        for (var i4 = 0; i4 < lss; ++i4) {
          buf[i4] = buf[spl + i4];
        }
      }
    } else if (spl)
      buf = slc(buf, spl);
    st.b = ebt;
    return buf;
  }
  err(2);
};
var cct = function(bufs, ol) {
  if (bufs.length == 1)
    return bufs[0];
  var buf = new u8(ol);
  for (var i4 = 0, b = 0; i4 < bufs.length; ++i4) {
    var chk = bufs[i4];
    buf.set(chk, b);
    b += chk.length;
  }
  return buf;
};
function decompress(dat, buf) {
  var bufs = [], nb = +!buf;
  var bt = 0, ol = 0;
  for (; dat.length; ) {
    var st = rzfh(dat, nb || buf);
    if (typeof st == "object") {
      if (nb) {
        buf = null;
        if (st.w.length == st.u) {
          bufs.push(buf = st.w);
          ol += st.u;
        }
      } else {
        bufs.push(buf);
        st.e = 0;
      }
      for (; !st.l; ) {
        var blk = rzb(dat, st, buf);
        if (!blk)
          err(5);
        if (buf)
          st.e = st.y;
        else {
          bufs.push(blk);
          ol += blk.length;
          cpw(st.w, 0, blk.length);
          st.w.set(blk, st.w.length - blk.length);
        }
      }
      bt = st.b + st.c * 4;
    } else
      bt = st;
    dat = dat.subarray(bt);
  }
  return cct(bufs, ol);
}
var Decompress = /* @__PURE__ */ (function() {
  function Decompress2(ondata) {
    this.ondata = ondata;
    this.c = [];
    this.l = 0;
    this.z = 0;
  }
  Decompress2.prototype.push = function(chunk, final) {
    if (typeof this.s == "number") {
      var sub = Math.min(chunk.length, this.s);
      chunk = chunk.subarray(sub);
      this.s -= sub;
    }
    var sl = chunk.length;
    var ncs = sl + this.l;
    if (!this.s) {
      if (final) {
        if (!ncs) {
          this.ondata(new u8(0), true);
          return;
        }
        if (ncs < 5)
          err(5);
      } else if (ncs < 18) {
        this.c.push(chunk);
        this.l = ncs;
        return;
      }
      if (this.l) {
        this.c.push(chunk);
        chunk = cct(this.c, ncs);
        this.c = [];
        this.l = 0;
      }
      if (typeof (this.s = rzfh(chunk)) == "number")
        return this.push(chunk, final);
    }
    if (typeof this.s != "number") {
      if (ncs < (this.z || 3)) {
        if (final)
          err(5);
        this.c.push(chunk);
        this.l = ncs;
        return;
      }
      if (this.l) {
        this.c.push(chunk);
        chunk = cct(this.c, ncs);
        this.c = [];
        this.l = 0;
      }
      if (!this.z && ncs < (this.z = chunk[this.s.b] & 2 ? 4 : 3 + (chunk[this.s.b] >> 3 | chunk[this.s.b + 1] << 5 | chunk[this.s.b + 2] << 13))) {
        if (final)
          err(5);
        this.c.push(chunk);
        this.l = ncs;
        return;
      } else
        this.z = 0;
      for (; ; ) {
        var blk = rzb(chunk, this.s);
        if (!blk) {
          if (final)
            err(5);
          var adc = chunk.subarray(this.s.b);
          this.s.b = 0;
          this.c.push(adc), this.l += adc.length;
          return;
        } else {
          this.ondata(blk, false);
          cpw(this.s.w, 0, blk.length);
          this.s.w.set(blk, this.s.w.length - blk.length);
        }
        if (this.s.l) {
          var rest = chunk.subarray(this.s.b);
          this.s = this.s.c * 4;
          this.push(rest, final);
          return;
        }
      }
    } else if (final)
      err(5);
  };
  return Decompress2;
})();

// ../packages/wshard/src/codec.ts
var MAX_RATIO = { zstd: 2 ** 15, lz4: 255 };
var MAX_WINDOW_BYTES = 1 << 25;
var MAX_ZSTD_BLOCK = 128 << 10;
var ZSTD_MAGIC = 4247762216;
function decode(codec, data, rawSize) {
  if (codec === "zstd") return decodeZstd(data, rawSize);
  if (codec === "lz4") return decodeLz4(data, rawSize);
  return data;
}
function allocate(codec, stored, rawSize) {
  const largest = Math.max(MAX_EXPANDED_BYTES, stored * MAX_LARGE_RATIO);
  if (rawSize <= stored * MAX_RATIO[codec] && rawSize <= largest) {
    try {
      return new Uint8Array(rawSize);
    } catch {
    }
  }
  throw new LimitExceededError(`too large: ${stored} ${codec} bytes expand to ${rawSize}`);
}
function damaged(why) {
  corrupt(`damaged zstd frame (${why})`);
}
function readFrame(data, start2) {
  const view = viewOf(data);
  try {
    const magic = view.getUint32(start2, true);
    if ((magic & 4294967280) >>> 0 === 407710288) {
      const end2 = start2 + 8 + view.getUint32(start2 + 4, true);
      if (end2 > data.length) throw new RangeError();
      return { size: 0, hasChecksum: false, isSkippable: true, windowBytes: 0, end: end2 };
    }
    if (magic !== ZSTD_MAGIC) corrupt("not a zstd frame");
    const flags = view.getUint8(start2 + 4);
    const isSingle = (flags & 32) !== 0;
    let at2 = start2 + 5;
    let windowBytes = 0;
    if (!isSingle) {
      const byte = view.getUint8(at2++);
      const base = 2 ** (10 + (byte >> 3));
      windowBytes = base + base / 8 * (byte & 7);
    }
    at2 += [0, 1, 2, 4][flags & 3];
    let size;
    const kind = flags >> 6;
    if (kind === 0 && isSingle) size = view.getUint8(at2++);
    else if (kind === 1) size = view.getUint16(at2, true) + 256;
    else if (kind === 2) size = view.getUint32(at2, true);
    else if (kind === 3) size = Number(view.getBigUint64(at2, true));
    if (kind) at2 += 1 << kind;
    const limit = Math.min(MAX_ZSTD_BLOCK, isSingle ? size ?? 0 : windowBytes);
    for (let isLast = false; !isLast; ) {
      const header = view.getUint16(at2, true) | view.getUint8(at2 + 2) << 16;
      isLast = (header & 1) !== 0;
      const type = header >> 1 & 3;
      if (type === 3 || header >> 3 > limit) damaged("a block's header");
      at2 += 3 + (type === 1 ? 1 : header >> 3);
      if (at2 > data.length) throw new RangeError();
    }
    const hasChecksum = (flags & 4) !== 0;
    const end = at2 + (hasChecksum ? 4 : 0);
    if (flags & 8 || end > data.length) throw new RangeError();
    return { size, hasChecksum, isSkippable: false, windowBytes: isSingle ? size ?? 0 : windowBytes, end };
  } catch (error) {
    if (error instanceof FormatError) throw error;
    damaged("it ends too early");
  }
}
function fill2(data, frame, out) {
  let written2 = 0;
  try {
    if (frame.size !== void 0) {
      if (frame.size) decompress(data, out.subarray(0, frame.size));
      written2 = frame.size;
    } else {
      const stream = new Decompress((part) => {
        if (written2 + part.length > out.length) damaged("it holds too much");
        out.set(part, written2);
        written2 += part.length;
      });
      stream.push(data, true);
    }
  } catch (error) {
    if (error instanceof FormatError) throw error;
    damaged(error.message);
  }
  if (frame.hasChecksum) {
    const stored = viewOf(data).getUint32(data.length - 4, true);
    if (Number(xxh64(out.subarray(0, written2)) & 0xffffffffn) !== stored) {
      damaged("checksum mismatch");
    }
  }
  return written2;
}
function decodeZstd(data, rawSize) {
  const out = allocate("zstd", data.length, rawSize);
  const first = readFrame(data, 0);
  if ((first.size ?? 0) > rawSize) {
    throw new LimitExceededError(`expected ${rawSize} bytes, got ${first.size}`);
  }
  if (first.size === rawSize && first.end !== data.length) {
    damaged("more bytes than the frame has");
  }
  let filled = 0;
  for (let at2 = 0; at2 < data.length; ) {
    const frame = at2 ? readFrame(data, at2) : first;
    if (!frame.isSkippable) {
      if ((frame.size ?? 0) > rawSize - filled) damaged("it holds too much");
      if (frame.size === void 0 && frame.windowBytes > MAX_WINDOW_BYTES) {
        damaged("its window is too large");
      }
      filled += fill2(data.subarray(at2, frame.end), frame, out.subarray(filled));
    }
    at2 = frame.end;
  }
  if (filled !== rawSize) corrupt(`expected ${rawSize} bytes, got ${filled}`);
  return out;
}
function decodeFrames(data, ends, sizes) {
  const out = allocate("zstd", data.length, sum(sizes));
  let start2 = 0;
  let filled = 0;
  for (const [index, end] of ends.entries()) {
    const part = data.subarray(start2, end);
    const frame = readFrame(part, 0);
    const size = sizes[index];
    if (!frame.hasChecksum || frame.size !== size || frame.end !== part.length) {
      corrupt(`expected a frame of ${size} bytes with a checksum`);
    }
    filled += fill2(part, frame, out.subarray(filled));
    start2 = end;
  }
  return out;
}
function decodeLz4(data, rawSize) {
  const out = allocate("lz4", data.length, rawSize);
  const size = data.length;
  let at2 = 0;
  let filled = 0;
  const bad = () => corrupt("damaged LZ4 block");
  const length = (start2) => {
    let total = start2;
    if (start2 === 15) {
      for (let byte = 255; byte === 255; total += byte) byte = at2 < size ? data[at2++] : bad();
    }
    return total;
  };
  while (at2 < size) {
    const token2 = data[at2++];
    const literals = length(token2 >> 4);
    if (literals > size - at2 || literals > rawSize - filled) bad();
    out.set(data.subarray(at2, at2 + literals), filled);
    at2 += literals;
    filled += literals;
    if (at2 === size) break;
    if (size - at2 < 2) bad();
    const offset = data[at2] | data[at2 + 1] << 8;
    at2 += 2;
    const match = length(token2 & 15) + 4;
    if (!offset || offset > filled || match > rawSize - filled) bad();
    for (const end = filled + match; filled < end; filled++) out[filled] = out[filled - offset];
    if (at2 === size) bad();
  }
  if (filled !== rawSize) corrupt(`expected ${rawSize} bytes, got ${filled}`);
  return out;
}

// ../packages/wshard/src/seekable.ts
var FOOTER_BYTES = 9;
function seekTableBytes(footer) {
  const missing = () => corrupt("no seek table");
  if (footer.length < FOOTER_BYTES) missing();
  const fields = viewOf(footer);
  const count = fields.getUint32(0, true);
  const descriptor = fields.getUint8(4);
  if (fields.getUint32(5, true) !== SEEK_TABLE_MAGIC || descriptor & 124) {
    missing();
  }
  if (count > MAX_FRAMES) corrupt(`too large: seek table of ${count} frames`);
  return 8 + count * (descriptor & 128 ? 12 : 8) + FOOTER_BYTES;
}
function unpackSeekTable(table, diskSize, rawSize) {
  const fields = viewOf(table);
  const entry = table[table.length - 5] & 128 ? 12 : 8;
  const isFrame = fields.getUint32(0, true) === SKIPPABLE_MAGIC && fields.getUint32(4, true) === table.length - 8;
  const count = (table.length - 8 - FOOTER_BYTES) / entry;
  const stored = new Float64Array(count + 1);
  const raw = new Float64Array(count + 1);
  for (let i4 = 0; i4 < count; i4++) {
    stored[i4 + 1] = stored[i4] + fields.getUint32(8 + i4 * entry, true);
    raw[i4 + 1] = raw[i4] + fields.getUint32(12 + i4 * entry, true);
  }
  if (!isFrame || stored[count] !== diskSize - table.length || raw[count] !== rawSize) corrupt("damaged seek table");
  return { stored, raw };
}
function framesFor(table, start2, end) {
  const first = firstAbove(table.raw, start2) - 1;
  let last = firstAbove(table.raw, end - 1);
  last = Math.min(last, table.raw.length - 1);
  return [first, Math.max(first, last)];
}
function firstAbove(values, limit) {
  let low2 = 0;
  let high2 = values.length;
  while (low2 < high2) {
    const middle = low2 + high2 >> 1;
    if (values[middle] > limit) high2 = middle;
    else low2 = middle + 1;
  }
  return low2;
}

// ../packages/wshard/src/table.ts
var SALVAGE = "Run `warp salvage` if a recorder wrote it, else restore a copy.";
function u64(view, at2) {
  return view.getUint32(at2 + 4, true) * 2 ** 32 + view.getUint32(at2, true);
}
function ascii(data, start2, end) {
  return String.fromCharCode(...data.subarray(start2, end));
}
function unpackHeader(start2, size) {
  const magic = ascii(start2, 0, 4);
  if (!MAGIC.startsWith(magic)) throw new BadMagicError("not a shard: expected SHRD");
  if (start2.length < HEADER_BYTES) {
    throw new TruncatedError(`too short for a shard: ${size} bytes`);
  }
  const view = viewOf(start2);
  const version = view.getUint8(4);
  if (version !== VERSION) throw new UnsupportedVersionError(`shard version ${version} is not known`);
  const entryBytes = view.getUint16(10, true);
  if (entryBytes !== ENTRY_BYTES) corrupt(`table entries of ${entryBytes} bytes`);
  const entryCount = view.getUint32(12, true);
  if (entryCount > MAX_ENTRIES) {
    throw new LimitExceededError(`${entryCount} blocks are too many`);
  }
  const alignment = view.getUint8(8);
  if (!ALIGNMENTS.includes(alignment)) {
    corrupt(`alignment ${alignment}`);
  }
  const namesOffset = u64(view, 16);
  if (namesOffset !== HEADER_BYTES + ENTRY_BYTES * entryCount) {
    corrupt("invalid offset of names", void 0, SALVAGE);
  }
  const dataOffset = u64(view, 24);
  if (dataOffset < namesOffset) corrupt("the data begins before the names");
  if (dataOffset - namesOffset > MAX_STRING_TABLE_BYTES) {
    throw new LimitExceededError(`too large: ${dataOffset - namesOffset} bytes of names`);
  }
  const total = u64(view, 40);
  if (total !== size) {
    const kind = size < total ? TruncatedError : CorruptLayoutError;
    throw new kind(`expected a file of ${total} bytes, got ${size}`);
  }
  if (dataOffset > size) throw new TruncatedError("the file ends inside its block table");
  const codecs = ["none", "zstd", "lz4"];
  return {
    role: view.getUint8(5),
    defaultCodec: codecs[view.getUint8(9)] ?? "none",
    namesOffset,
    dataOffset
  };
}
function parseTable(header, head, size) {
  const isChecksummed = checkMark(head, header.dataOffset);
  const names = head.subarray(header.namesOffset, header.dataOffset);
  const view = viewOf(head);
  const blocks = /* @__PURE__ */ new Map();
  for (let at2 = HEADER_BYTES; at2 < header.namesOffset; at2 += ENTRY_BYTES) {
    const block = unpackEntry(view, at2, names, header.defaultCodec, isChecksummed);
    if (blocks.has(block.name)) corrupt("two blocks have this name", block.name);
    blocks.set(block.name, block);
  }
  checkRanges(blocks, header.dataOffset, size);
  return [blocks, isChecksummed];
}
function checkMark(head, end) {
  const view = viewOf(head);
  if (u64(view, 56) !== 0) corrupt("reserved header bytes are not zero");
  const stored = view.getUint32(52, true);
  if (view.getUint32(48, true) === 0 && stored === 0) return false;
  if (ascii(head, 48, 52) !== MARK) {
    corrupt("the mark of the checksum is damaged");
  }
  if (tableCrc32c(head.subarray(0, end)) !== stored) {
    throw new ChecksumError("checksum mismatch");
  }
  return true;
}
function tableCrc32c(head) {
  return crc32c(head.subarray(HEADER_BYTES), crc32c(head.subarray(0, MARKED_HEADER_BYTES)));
}
function unpackEntry(view, at2, names, byDefault, isTrusted) {
  const nameOffset = view.getUint32(at2 + 8, true);
  const nameBytes = view.getUint16(at2 + 12, true);
  const raw = names.subarray(nameOffset, nameOffset + nameBytes);
  if (raw.length !== nameBytes) corrupt("a block name outside the names");
  const name = checkedName(raw);
  if (!isTrusted) {
    const hash = view.getBigUint64(at2, true);
    if (hash !== xxh64(raw) && hash !== fnv1a64(raw)) corrupt("the hash of the name is wrong", name);
  }
  const diskSize = u64(view, at2 + 24);
  const rawSize = u64(view, at2 + 32);
  if (Math.max(diskSize, rawSize) > MAX_BLOCK_BYTES) {
    throw new LimitExceededError(`too large: ${Math.max(diskSize, rawSize)} bytes`, name);
  }
  const flags = view.getUint16(at2 + 14, true);
  const codec = codecOf(flags, byDefault, diskSize === rawSize, name);
  if (codec === "none" && diskSize !== rawSize) {
    corrupt("stored raw, but its two sizes differ", name);
  }
  return {
    name,
    codec,
    isSeekable: flags === FLAGS_SEEKABLE,
    dataOffset: u64(view, at2 + 16),
    diskSize,
    rawSize,
    crc32c: view.getUint32(at2 + 40, true),
    contentType: view.getUint16(at2 + 44, true)
  };
}
function codecOf(flags, byDefault, isSameSize, name) {
  switch (flags) {
    case FLAGS_RAW:
      return "none";
    case FLAGS_ZSTD:
    case FLAGS_SEEKABLE:
      return "zstd";
    case FLAGS_LZ4:
      return "lz4";
    case FLAGS_DEFAULT:
      return isSameSize ? "none" : byDefault;
    default:
      corrupt(`unknown storage flags ${flags}`, name);
  }
}
function checkedName(raw) {
  if (raw.length > MAX_NAME_BYTES || raw.length === 0) {
    throw new LimitExceededError(`a block name of ${raw.length} bytes`);
  }
  const name = utf8(raw, "the name of a block is not UTF-8");
  if (name.includes("\0")) corrupt("holds a NUL byte", name);
  return name;
}
function checkRanges(blocks, start2, size) {
  let position2 = start2;
  for (const block of [...blocks.values()].sort((a3, b) => a3.dataOffset - b.dataOffset)) {
    if (!block.diskSize) continue;
    if (block.dataOffset < position2) corrupt("overlaps what is before it", block.name, SALVAGE);
    position2 = block.dataOffset + block.diskSize;
    if (position2 > size) throw new TruncatedError("lies past the end of the file", block.name);
  }
}

// ../packages/wshard/src/shard.ts
var HEAD_BYTES = 64 << 10;
var KEEP_BYTES = 64 << 20;
var STEP_BYTES = 8 << 20;
var Shard = class _Shard {
  #source;
  #head;
  #options;
  #kept = /* @__PURE__ */ new Map();
  #verified = /* @__PURE__ */ new Set();
  #pieces = /* @__PURE__ */ new Map();
  #seekTables = /* @__PURE__ */ new Map();
  blocks;
  /** What kind of shard this is: 5 an episode, 4 a chunk list. */
  role;
  /** Whether header and table carry a checksum; else only structure and name hashes were checked. */
  isChecksummed;
  constructor(source, head, header, size, options) {
    this.#source = source;
    this.#head = head;
    this.#options = options;
    this.role = header.role;
    [this.blocks, this.isChecksummed] = parseTable(header, head, size);
  }
  /** Open a shard: one read, or two where its table is larger than most. */
  static async open(source, options = {}) {
    const size = await source.size();
    const start2 = await source.read(0, Math.min(size, Math.max(options.headBytes ?? HEAD_BYTES, HEADER_BYTES)));
    const header = unpackHeader(start2, size);
    const head = header.dataOffset <= start2.length ? start2 : await source.read(0, header.dataOffset);
    return new _Shard(source, head, header, size, options);
  }
  get source() {
    return this.#source;
  }
  get names() {
    return [...this.blocks.keys()];
  }
  has(name) {
    return this.blocks.has(name);
  }
  block(name) {
    const found = this.blocks.get(name);
    if (!found) throw new NotFoundError("no such block", name);
    return found;
  }
  /** The decompressed, verified bytes of a block; not to be changed. */
  async read(name) {
    const block = this.block(name);
    const kept = this.#kept.get(name);
    if (kept) {
      this.#kept.delete(name);
      this.#kept.set(name, kept);
      return kept;
    }
    const reading = this.#readWhole(block);
    this.#keep(name, block.rawSize, reading);
    return reading;
  }
  async #readWhole(block) {
    let data;
    if (block.isSeekable) data = await this.#readFrames(block, 0, block.rawSize);
    else {
      const stored = await this.#stored(block, 0, block.diskSize);
      if (block.codec === "none") data = stored;
      else data = about(block.name, () => decode(block.codec, stored, block.rawSize));
    }
    this.#settle(block, crc32c(data));
    return data;
  }
  /** Remember that a block was held against its checksum, which must be this one. */
  #settle(block, checksum) {
    if (checksum !== block.crc32c) throw new ChecksumError("checksum mismatch", block.name);
    this.#verified.add(block.name);
  }
  #keep(name, size, reading) {
    const most = this.#options.keepBytes ?? KEEP_BYTES;
    if (size > most) return;
    this.#kept.set(name, reading);
    reading.catch(() => this.#kept.delete(name));
    let total = 0;
    for (const each of [...this.#kept.keys()].reverse()) {
      total += this.block(each).rawSize;
      if (total > most) this.#kept.delete(each);
    }
  }
  /** A block that holds a JSON object. */
  async readJson(name) {
    const data = await this.read(name);
    return about(name, () => parseJsonObject(data));
  }
  /**
   * Bytes [start, end) of the decompressed block, reading and verifying as little as holds them. `rowBytes` is what one
   * row of the block has: its checksums are of whole rows.
   */
  async readRange(name, start2, end, rowBytes = 1) {
    const block = this.block(name);
    checkRange(start2, end, block.rawSize, `bytes of block '${name}'`);
    if (start2 === end) return new Uint8Array(0);
    if (block.isSeekable && !this.#kept.has(name)) return this.#readFrames(block, start2, end);
    if (block.codec !== "none" || block.rawSize <= PIECES_FROM_BYTES || this.#kept.has(name)) {
      return (await this.read(name)).subarray(start2, end);
    }
    if (this.#verified.has(name)) return this.#stored(block, start2, end);
    if (this.has(PIECES_PREFIX + name)) return this.#readPieces(block, start2, end, rowBytes);
    if (this.#options.verify === "window") return this.#stored(block, start2, end);
    if (block.rawSize <= (this.#options.keepBytes ?? KEEP_BYTES)) return (await this.read(name)).subarray(start2, end);
    await this.#checkUnread(block);
    return this.#stored(block, start2, end);
  }
  async #checkUnread(block) {
    let checksum = 0;
    for (let at2 = 0; at2 < block.diskSize; at2 += STEP_BYTES) {
      checksum = crc32c(await this.#stored(block, at2, Math.min(at2 + STEP_BYTES, block.diskSize)), checksum);
    }
    this.#settle(block, checksum);
  }
  async #readPieces(block, start2, end, rowBytes) {
    const pieces2 = await this.#once(this.#pieces, block.name, async () => {
      const name = PIECES_PREFIX + block.name;
      const data2 = await this.read(name);
      return about(name, () => unpackPieces(data2));
    });
    const size = pieces2.rows * rowBytes;
    const first = Math.floor(start2 / size);
    const last = Math.ceil(end / size);
    if (last > pieces2.checksums.length) {
      corrupt("has fewer piece checksums than pieces", block.name);
    }
    if (pieces2.isChecked.subarray(first, last).every((each) => each === 1)) return this.#stored(block, start2, end);
    const low2 = first * size;
    const data = await this.#stored(block, low2, Math.min(last * size, block.rawSize));
    for (let index = first; index < last; index++) {
      const piece = data.subarray(index * size - low2, (index + 1) * size - low2);
      if (crc32c(piece) !== pieces2.checksums[index]) {
        throw new ChecksumError("checksum mismatch", block.name);
      }
      pieces2.isChecked[index] = 1;
    }
    return data.subarray(start2 - low2, end - low2);
  }
  async #readFrames(block, start2, end) {
    const table = await this.#once(this.#seekTables, block.name, () => this.#readSeekTable(block));
    const [first, last] = framesFor(table, start2, end);
    if (first >= last) return new Uint8Array(0);
    const base = table.stored[first];
    const stored = await this.#stored(block, base, table.stored[last]);
    const ends = Array.from(table.stored.subarray(first + 1, last + 1), (each) => each - base);
    const sizes = ends.map((_4, index) => table.raw[first + index + 1] - table.raw[first + index]);
    const data = about(block.name, () => decodeFrames(stored, ends, sizes));
    const skip = start2 - table.raw[first];
    return data.subarray(skip, skip + end - start2);
  }
  async #readSeekTable(block) {
    const size = block.diskSize;
    const ahead = SEEK_PREFIX + block.name;
    if (this.has(ahead)) {
      try {
        const table2 = await this.read(ahead);
        if (seekTableBytes(table2.subarray(-FOOTER_BYTES)) === table2.length) {
          return unpackSeekTable(table2, size, block.rawSize);
        }
      } catch (error) {
        if (!(error instanceof FormatError)) throw error;
      }
    }
    const guess = Math.min(size, 8 << 10);
    const tail = await this.#stored(block, size - guess, size);
    const length = about(block.name, () => seekTableBytes(tail.subarray(Math.max(0, guess - FOOTER_BYTES))));
    if (length > size) corrupt("damaged seek table", block.name);
    const table = length <= guess ? tail.subarray(guess - length) : await this.#stored(block, size - length, size);
    return about(block.name, () => unpackSeekTable(table, size, block.rawSize));
  }
  async #once(kept, name, read) {
    let found = kept.get(name);
    if (!found) {
      found = read();
      kept.set(name, found);
      found.catch(() => kept.delete(name));
    }
    return found;
  }
  async #stored(block, start2, end) {
    const low2 = block.dataOffset + start2;
    const high2 = block.dataOffset + end;
    if (high2 <= this.#head.length) return this.#head.subarray(low2, high2);
    return low2 === high2 ? new Uint8Array(0) : this.#source.read(low2, high2);
  }
};
function unpackPieces(data) {
  const view = viewOf(data);
  const rows2 = data.length < 4 || data.length % 4 ? 0 : view.getUint32(0, true);
  if (rows2 === 0) corrupt("damaged piece checksums");
  const checksums = new Uint32Array(data.length / 4 - 1);
  for (let i4 = 0; i4 < checksums.length; i4++) checksums[i4] = view.getUint32(4 + 4 * i4, true);
  return { rows: rows2, checksums, isChecked: new Uint8Array(checksums.length) };
}

// ../packages/wshard/src/source.ts
var HEAD_BYTES2 = 64 << 10;
var RETRIES = 3;
var FIRST_DELAY_MS = 100;
var RANGE = /^bytes (\d+)-(\d+)\/(\d+)$/;
function fromUrl(url, options = {}) {
  const address2 = String(url);
  const get = options.fetch ?? globalThis.fetch;
  let tag;
  let total;
  let opening;
  const request = async (start2, end) => {
    for (let attempt = 0; ; attempt++) {
      let isFinal = false;
      try {
        const reply = await get(address2, {
          headers: {
            ...options.headers,
            // A compressed answer would have other offsets; browsers say this themselves.
            "Accept-Encoding": "identity",
            Range: `bytes=${start2}-${end - 1}`
          },
          ...options.signal && { signal: options.signal }
        });
        isFinal = reply.status !== 429 && reply.status < 500;
        const size = await checkReply(reply, start2, end);
        isFinal = false;
        const data = new Uint8Array(await reply.arrayBuffer());
        if (data.length === size) return data;
        throw new TruncatedError(`${address2} ended in the middle of an answer`);
      } catch (error) {
        if (isFinal || attempt >= (options.retries ?? RETRIES) || options.signal?.aborted) {
          if (options.signal?.aborted || error instanceof WShardError) throw error;
          throw new UnavailableError(`${address2} cannot be read (${error.message})`, void 0, CORS);
        }
      }
      await new Promise((resolve) => setTimeout(resolve, FIRST_DELAY_MS * 2 ** attempt));
    }
  };
  const checkReply = async (reply, start2, end) => {
    const { status, headers, body } = reply;
    const refuse = async (error) => {
      await body?.cancel();
      throw error;
    };
    if (status === 404) return refuse(new NotFoundError(`nothing at ${address2}`));
    if (status === 416) {
      total ??= Number(headers.get("Content-Range")?.split("/")[1] ?? 0);
      if (total === 0) return (await reply.arrayBuffer()).byteLength;
    }
    const range = RANGE.exec(headers.get("Content-Range") ?? "") ?? [];
    const [first, last, size] = range.slice(1).map(Number);
    const isAsked = first === start2 && last === Math.min(end, size) - 1;
    if (status !== 206 || !isAsked || (headers.get("Content-Encoding") ?? "identity") !== "identity") {
      return refuse(new UnavailableError(`${address2} answered ${status} without the range`, void 0, CORS));
    }
    const found = headers.get("ETag") ?? headers.get("Last-Modified");
    if (total !== void 0 && (size !== total || found !== tag)) {
      return refuse(new ChangedError(`${address2} changed while it was read`, void 0, "Open it again."));
    }
    tag = found;
    total = size;
    return last - first + 1;
  };
  const head = async () => {
    opening ??= request(0, options.headBytes ?? HEAD_BYTES2);
    try {
      return await opening;
    } catch (error) {
      opening = void 0;
      throw error;
    }
  };
  return {
    size: async () => {
      await head();
      return total ?? 0;
    },
    read: async (start2, end) => {
      if (end <= start2) return new Uint8Array(0);
      const kept = await head();
      return end <= kept.length ? kept.subarray(start2, end) : exactly(await request(start2, end), start2, end);
    },
    beside: (name) => {
      const next = new URL(address2, globalThis.location?.href);
      next.search = "";
      return fromUrl(new URL(name.split("/").map(encodeURIComponent).join("/"), next), options);
    }
  };
}
var CORS = "The server must answer range requests; for pages of other sites it must allow CORS and expose Content-Range and ETag.";
function exactly(data, start2, end) {
  if (data.length !== end - start2) throw new TruncatedError(`${data.length} of ${end - start2} bytes at ${start2}`);
  return data;
}

// src/blobs.ts
var shards = /* @__PURE__ */ new Map();
async function opened(url) {
  let found = shards.get(url);
  if (!found) {
    found = Shard.open(fromUrl(url));
    shards.set(url, found);
    found.catch(() => shards.delete(url));
  }
  return found;
}
async function told(work) {
  try {
    return await work();
  } catch (error) {
    if (error instanceof WShardError) throw new Refused(0, error.message, error.hint);
    throw error;
  }
}
async function bytesOf(url, place, from, to) {
  const shard = await opened(url);
  const row = place.shape.slice(1).reduce((size, side) => size * side, DTYPES[place.dtype]);
  const parts = [];
  let first = 0;
  for (const [block, count] of place.parts) {
    const [low2, high2] = [Math.max(from - first, 0), Math.min(to - first, count)];
    if (low2 < high2) parts.push(shard.readRange(block, low2 * row, high2 * row, row));
    first += count;
  }
  return joinBytes(await Promise.all(parts));
}
function numbers(dtype, data) {
  if (dtype === "f16" || dtype === "bf16") return toFloat32(dtype, data);
  const values = typedArray(dtype, data);
  if (values instanceof BigInt64Array || values instanceof BigUint64Array) return Float64Array.from(values, Number);
  return values;
}
function blobRows(url, place, from, to, start2) {
  return told(async () => {
    const data = await bytesOf(url, place, from, to);
    if (!place.is_time) return numbers(place.dtype, data);
    return Float64Array.from(typedArray("i64", data), (each) => Number(each - start2));
  });
}
function blobFrame(url, place, row, limits) {
  return told(async () => {
    const values = numbers(place.dtype, await bytesOf(url, place, row, row + 1));
    const [a3 = 1, b = 1, c3] = place.shape.slice(1);
    const planesFirst = c3 !== void 0 && ![1, 3, 4].includes(c3);
    const [height, width, colours] = planesFirst ? [b, c3, a3] : [a3, b, c3 ?? 1];
    const shown2 = colours === 1 ? 1 : 3;
    const data = new Uint8ClampedArray(height * width * shown2);
    const [low2, scale] = limits ? [limits[0], 255 / (limits[1] - limits[0])] : [0, 1];
    for (let pixel = 0; pixel < height * width; pixel++)
      for (let colour = 0; colour < shown2; colour++) {
        const value = values[planesFirst ? colour * height * width + pixel : pixel * colours + colour];
        data[pixel * shown2 + colour] = Math.trunc((value - low2) * scale);
      }
    return { head: {}, arrays: { pixels: { data: new Uint8Array(data.buffer), shape: [height, width, shown2] } } };
  });
}
function blobPackets(url, video, packets, row, onlyNeeded) {
  return told(async () => {
    const shard = await opened(url);
    const count = packets.length / 5;
    const at2 = (packet, column2) => packets[packet * 5 + column2];
    let wanted = 0;
    while (wanted < count && at2(wanted, 3) !== row) wanted++;
    if (wanted === count) return { head: { codec: null }, arrays: {} };
    const first = at2(wanted, 4);
    let last = wanted;
    for (let packet = wanted + 1; !onlyNeeded && packet < count && at2(packet, 4) === first; packet++) last = packet;
    const group = Array.from({ length: last - first + 1 }, (_4, index) => first + index);
    const low2 = Math.min(...group.map((each) => at2(each, 0)));
    const high2 = Math.max(...group.map((each) => at2(each, 0) + at2(each, 1)));
    const { dataOffset } = shard.block(video.block);
    const data = await shard.source.read(dataOffset + low2, dataOffset + high2);
    const parts = group.map((each) => data.subarray(at2(each, 0) - low2, at2(each, 0) - low2 + at2(each, 1)));
    parts.forEach((part, index) => {
      if (crc32c(part) !== at2(group[index], 2)) throw new Refused(0, `a frame of ${video.block} does not match its checksum`, "Restore the blob from another copy.");
    });
    const head = { codec: video.codec, description: video.description, coded: video.coded, rows: group.map((each) => at2(each, 3)), sizes: parts.map((part) => part.length) };
    return { head, arrays: { data: { data: joinBytes(parts).slice(), shape: [high2 - low2] } } };
  });
}

// src/condition.ts
var TOKEN = /\s*(?:('(?:[^']|'')*')|(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?|-?\.\d+(?:e[+-]?\d+)?)|([a-z_]\w*)|("[^"]+")|(<=|>=|<>|!=|==|[=<>(),]))/iy;
var WORDS = /* @__PURE__ */ new Set(["and", "or", "not", "is", "null", "in", "like", "ilike", "between", "true", "false"]);
function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (text.slice(TOKEN.lastIndex).trim()) {
    const from = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw refused(`${text.slice(from).trim().slice(0, 40)} is not understood`);
    const [, quoted2, number, name, column2, sign2] = match;
    const word = name?.toLowerCase() ?? "";
    if (quoted2 !== void 0) found.push({ kind: "literal", text: quoted2, value: quoted2.slice(1, -1).replaceAll("''", "'") });
    else if (number !== void 0) found.push({ kind: "literal", text: number, value: Number(number) });
    else if (word === "true" || word === "false") found.push({ kind: "literal", text: word, value: word === "true" });
    else if (column2 !== void 0 || name !== void 0 && !WORDS.has(word)) found.push({ kind: "column", text: column2?.slice(1, -1) ?? name, value: null });
    else found.push({ kind: "word", text: sign2 ?? word, value: null });
  }
  return found;
}
var refused = (why) => new Refused(400, `the filter: ${why}`, "");
function condition(text, columns) {
  if (!text.trim()) return () => true;
  const known = new Set(columns);
  const left = tokens(text);
  const peek = (word) => left[0]?.kind === "word" && left[0].text === word;
  const take = (word) => peek(word) && left.shift() !== void 0;
  const need = (word) => {
    if (!take(word)) throw refused(`${word} is missing${left[0] ? ` before ${left[0].text}` : ""}`);
  };
  const literal = () => {
    const next = left.shift();
    if (next?.kind === "literal") return next.value;
    if (next?.text === "null") return null;
    throw refused(`a value is missing${next ? ` before ${next.text}` : ""}`);
  };
  function some() {
    const parts = [every()];
    while (take("or")) parts.push(every());
    return (row) => either(parts.map((each) => each(row)), true);
  }
  function every() {
    const parts = [one()];
    while (take("and")) parts.push(one());
    return (row) => either(parts.map((each) => each(row)), false);
  }
  function one() {
    if (take("not")) return opposite(one());
    if (take("(")) {
      const inside = some();
      need(")");
      return inside;
    }
    const next = left.shift();
    if (next?.kind === "literal") return () => next.value === null ? null : Boolean(next.value);
    if (next?.kind !== "column") throw refused(`a column is missing${next ? ` before ${next.text}` : ""}`);
    if (!known.has(next.text)) throw refused(`there is no column ${next.text}; there are ${[...known].join(", ")}`);
    return compared((row) => row[next.text] ?? null);
  }
  function compared(value) {
    if (take("is")) {
      const isNot = take("not");
      const wanted2 = literal();
      return (row) => value(row) === wanted2 !== isNot;
    }
    if (take("not")) return opposite(among(value));
    if (peek("in") || peek("like") || peek("ilike") || peek("between")) return among(value);
    const sign2 = left[0]?.kind === "word" && COMPARE[left[0].text] ? left.shift().text : "";
    if (!sign2) return (row) => value(row) === null ? null : Boolean(value(row));
    const wanted = literal();
    return (row) => compare(COMPARE[sign2], value(row), wanted);
  }
  function among(value) {
    if (take("in")) {
      need("(");
      const wanted = [literal()];
      while (take(",")) wanted.push(literal());
      need(")");
      return (row) => value(row) === null ? null : wanted.includes(value(row));
    }
    if (take("between")) {
      const low2 = literal();
      need("and");
      const high2 = literal();
      return (row) => either([compare(COMPARE[">="], value(row), low2), compare(COMPARE["<="], value(row), high2)], false);
    }
    const ignoresCase = take("ilike");
    if (!ignoresCase) need("like");
    const pattern = String(literal()).replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll("%", ".*").replaceAll("_", ".");
    const test2 = new RegExp(`^${pattern}$`, ignoresCase ? "is" : "s");
    return (row) => value(row) === null ? null : test2.test(String(value(row)));
  }
  const test = some();
  if (left.length) throw refused(`${left[0].text} is not understood here`);
  return (row) => test(row) === true;
}
var COMPARE = {
  "=": (order) => order === 0,
  "==": (order) => order === 0,
  "<>": (order) => order !== 0,
  "!=": (order) => order !== 0,
  "<": (order) => order < 0,
  "<=": (order) => order <= 0,
  ">": (order) => order > 0,
  ">=": (order) => order >= 0
};
function compare(holds, value, wanted) {
  if (value === null || wanted === null) return null;
  const [a3, b] = typeof value === "string" || typeof wanted === "string" ? [String(value), String(wanted)] : [Number(value), Number(wanted)];
  return holds(a3 < b ? -1 : a3 > b ? 1 : 0);
}
function either(found, wanted) {
  return found.includes(wanted) ? wanted : found.includes(null) ? null : !wanted;
}
function opposite(test) {
  return (row) => {
    const found = test(row);
    return found === null ? null : !found;
  };
}

// src/selection.ts
var MEASURES = ["length", "duration_s", "total_reward"];
var BINS = 24;
var FAR = 3.5;
var LEAST = 5;
var MOST_TASKS = 40;
function statisticsOf(rows2) {
  const measures = {};
  const outliers = {};
  for (const name of MEASURES) {
    const known = rows2.filter((row) => typeof row[name] === "number");
    const values = known.map((row) => row[name]);
    if (!values.length) continue;
    measures[name] = histogram(values);
    const isFar = farOff(values);
    for (const row of known) if (isFar(row[name])) (outliers[row.id] ??= []).push(name);
  }
  return { episodes: rows2.length, measures, outliers, success: counted(rows2, "success", 3), task: counted(rows2, "task", MOST_TASKS) };
}
function histogram(values) {
  let [low2, high2] = [values.reduce((a3, b) => Math.min(a3, b)), values.reduce((a3, b) => Math.max(a3, b))];
  const sum2 = values.reduce((a3, b) => a3 + b, 0);
  if (low2 === high2) [low2, high2] = [low2 - 0.5, high2 + 0.5];
  const bins = Math.min(BINS, new Set(values).size);
  const counts = new Array(bins).fill(0);
  for (const each of values) counts[Math.min(bins - 1, Math.floor((each - low2) / (high2 - low2) * bins))]++;
  return { counts, low: low2, high: high2, mean: sum2 / values.length, sum: sum2 };
}
function median(values) {
  const sorted = [...values].sort((a3, b) => a3 - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
function farOff(values) {
  const middle = median(values);
  const away = values.map((each) => Math.abs(each - middle));
  const spread = median(away) * 1.4826 || away.reduce((a3, b) => a3 + b, 0) / away.length * 1.2533;
  return (value) => values.length >= LEAST && spread > 0 && Math.abs(value - middle) > FAR * spread;
}
function counted(rows2, name, most) {
  const found = /* @__PURE__ */ new Map();
  for (const row of rows2) {
    const value = row[name] ?? null;
    found.set(value, (found.get(value) ?? 0) + 1);
  }
  return [...found].map(([value, count]) => ({ value, count })).sort((a3, b) => b.count - a3.count).slice(0, most);
}

// src/site.ts
var STEP = 16;
var files = /* @__PURE__ */ new Map();
var pieces = /* @__PURE__ */ new Map();
var whole = /* @__PURE__ */ new Map();
var site = null;
var siteName = () => document.documentElement.dataset.site;
async function load(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Refused(answer.status, `${name} is missing on this site`, "Export it again.");
  return answer;
}
var opened2 = () => site ??= load(siteName()).then((answer) => answer.json());
async function position(id) {
  const at2 = (await opened2()).rows.findIndex((row) => row.id === id);
  if (at2 < 0) throw new Refused(404, `no episode ${id} here`, "");
  return at2;
}
var siteSound = async (id, signal) => `e/${await position(id)}-${signal}.wav`;
async function fileOf(id) {
  const at2 = await position(id);
  if (!files.has(id)) files.set(id, load(`e/${at2}.json`).then((answer) => answer.json()));
  return files.get(id);
}
async function bytes2(id, at2, size) {
  const name = `e/${await position(id)}.bin`;
  if (whole.has(name)) return (await whole.get(name)).slice(at2, at2 + size);
  const key = `${name} ${at2} ${size}`;
  if (!pieces.has(key)) {
    pieces.set(
      key,
      (async () => {
        if (!size) return new ArrayBuffer(0);
        const answer = await fetch(name, { headers: { Range: `bytes=${at2}-${at2 + size - 1}` } });
        if (!answer.ok) throw new Refused(answer.status, `${name} cannot be read`, "Export it again.");
        const body = await answer.arrayBuffer();
        if (answer.status === 206) return body;
        whole.set(name, Promise.resolve(body));
        return body.slice(at2, at2 + size);
      })()
    );
    if (pieces.size > 600) pieces.delete(pieces.keys().next().value);
  }
  return pieces.get(key);
}
async function blobUrl(id, number) {
  const key = (await fileOf(id)).blobs[number].split("/").map(encodeURIComponent).join("/");
  return new URL(key, new URL((await opened2()).data ?? "", document.baseURI)).href;
}
async function rows(id, place, from, to) {
  if ("blob" in place) return blobRows(await blobUrl(id, place.blob), place, from, to, BigInt((await fileOf(id)).episode.start_ns));
  const width = place.shape.slice(1).reduce((a3, b) => a3 * b, 1);
  const item = Number(place.dtype.slice(1)) * width;
  return typed(place.dtype, await bytes2(id, place.at + from * item, (to - from) * item), 0, (to - from) * width);
}
async function descend(id, levels, from, to, most) {
  let level = levels.length - 1;
  let [a3, b] = [0, levels[level].times.shape[0]];
  for (; ; ) {
    const at2 = levels[level];
    const [times, low2, high2] = await Promise.all([rows(id, at2.times, a3, b), rows(id, at2.low, a3, b), at2.high ? rows(id, at2.high, a3, b) : null]);
    const first = Math.max(0, upper(times, from) - 1);
    const last = Math.min(times.length, upper(times, to) + 1);
    const width = at2.low.shape[1] ?? 1;
    const count = last - first;
    if (level === 0 || count * STEP > most * 4)
      return { times: times.subarray(first, last), low: low2.subarray(first * width, last * width), high: (high2 ?? low2).subarray(first * width, last * width), start: a3 + first, width, level };
    level--;
    const size = levels[level].times.shape[0];
    [a3, b] = [(a3 + first) * STEP, Math.min((a3 + last) * STEP, size)];
  }
}
function upper(times, at2) {
  let low2 = 0;
  let high2 = times.length;
  while (low2 < high2) {
    const middle = low2 + high2 >> 1;
    if (times[middle] <= at2) low2 = middle + 1;
    else high2 = middle;
  }
  return low2;
}
async function points(query2) {
  const { file, stored, id } = await signalOf(query2);
  const base = BigInt(file.episode.start_ns);
  const [from, to] = [Number(BigInt(query2.from) - base), Number(BigInt(query2.to) - base)];
  const width = Number(query2.width);
  const part = await descend(id, stored.levels, from, to, width);
  const count = part.times.length;
  if (part.level === 0 && count <= 2 * width) {
    const values2 = new Float64Array(count * part.width);
    for (let i4 = 0; i4 < count; i4++) for (let c3 = 0; c3 < part.width; c3++) values2[c3 * count + i4] = part.low[i4 * part.width + c3];
    return { head: { exact: true }, arrays: { times: { data: part.times, shape: [count] }, values: { data: values2, shape: [part.width, count] } } };
  }
  const buckets = Math.min(width, count);
  const times = new Float64Array(2 * buckets);
  const values = new Float64Array(2 * buckets * part.width).fill(Number.NaN);
  for (let k3 = 0; k3 < buckets; k3++) {
    const [start2, stop] = [Math.floor(k3 * count / buckets), Math.floor((k3 + 1) * count / buckets)];
    times[2 * k3] = part.times[start2];
    times[2 * k3 + 1] = part.times[start2 + stop >> 1] ?? part.times[start2];
    for (let c3 = 0; c3 < part.width; c3++) {
      let [low2, high2] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
      for (let i4 = start2; i4 < stop; i4++) {
        const [x2, y3] = [part.low[i4 * part.width + c3], part.high[i4 * part.width + c3]];
        if (x2 < low2) low2 = x2;
        if (y3 > high2) high2 = y3;
      }
      if (low2 <= high2) {
        values[c3 * 2 * buckets + 2 * k3] = low2;
        values[c3 * 2 * buckets + 2 * k3 + 1] = high2;
      }
    }
  }
  return { head: { exact: false }, arrays: { times: { data: times, shape: [2 * buckets] }, values: { data: values, shape: [part.width, 2 * buckets] } } };
}
async function signalOf(query2) {
  const id = String(query2.episode);
  const file = await fileOf(id);
  return { file, stored: file.signals[`${query2.signal}${query2.residual ? " residual" : ""}`], id };
}
async function at(query2) {
  const id = String(query2.episode);
  const file = await fileOf(id);
  const when = Number(BigInt(query2.at) - BigInt(file.episode.start_ns));
  const values = await Promise.all(
    Object.entries(file.signals).map(async ([key, stored]) => {
      const each = { signal: Number.parseInt(key), ...key.endsWith(" residual") && { is_residual: true } };
      if (stored.levels) {
        const part = await descend(id, stored.levels, when, when, 64);
        const row2 = upper(part.times, when) - 1;
        if (row2 < 0) return { ...each, row: -1 };
        const found = Array.from(part.low.subarray(row2 * part.width, (row2 + 1) * part.width), (value) => Number.isNaN(value) ? null : value);
        return { ...each, row: part.start + row2, age_ns: when - part.times[row2], values: found };
      }
      const times = await rows(id, stored.times, 0, stored.times.shape[0]);
      const row = upper(times, when) - 1;
      if (row < 0) return { ...each, row };
      return { ...each, row, age_ns: when - times[row], ...stored.texts ? { text: stored.texts[row] } : {} };
    })
  );
  return { at_ns: String(query2.at), values };
}
async function selected(query2) {
  const { rows: all, dataset } = await opened2();
  return all.filter(condition(String(query2.where ?? ""), dataset.columns.map((each) => each.name)));
}
async function episodes(query2) {
  const { dataset } = await opened2();
  let chosen = await selected(query2);
  const sort = String(query2.sort ?? "");
  if (sort)
    chosen = [...chosen].sort((a3, b) => {
      const [x2, y3] = [a3[sort] ?? null, b[sort] ?? null];
      if (x2 === null || y3 === null) return Number(x2 === null) - Number(y3 === null);
      return (x2 < y3 ? -1 : x2 > y3 ? 1 : 0) * (query2.order === "down" ? -1 : 1);
    });
  else if (query2.order === "down") chosen = [...chosen].reverse();
  const start2 = Number(query2.start ?? 0);
  return { generation: dataset.generation, total: chosen.length, start: start2, rows: chosen.slice(start2, start2 + Number(query2.count ?? 100)), live: [] };
}
async function distribution(signal) {
  const found = (await opened2()).distributions[signal];
  if (!found) throw new Refused(404, `nothing is known of the values of ${signal}`, "");
  return found;
}
async function siteJson(name, query2) {
  const id = String(query2.episode);
  switch (name) {
    case "session":
      return { write_token: "" };
    case "dataset":
      return (await opened2()).dataset;
    case "episodes":
      return episodes(query2);
    case "statistics":
      return statisticsOf(await selected(query2));
    case "distribution":
      return distribution(String(query2.signal));
    case "checks":
      return (await opened2()).checks;
    case "history":
      return { edits: [], dropped: [] };
    case "episode":
      return (await fileOf(id)).episode;
    case "events":
      return (await fileOf(id)).events;
    case "errors":
      return (await fileOf(id)).errors;
    case "at":
      return at(query2);
  }
  throw new Refused(404, "an exported site can only be read", "");
}
async function siteArrays(name, query2) {
  if (name === "points") return points(query2);
  if (name === "thumbnail") {
    const id2 = String(query2.episode);
    return unframe(await bytes2(id2, ...(await fileOf(id2)).thumbnail));
  }
  const { stored, id } = await signalOf(query2);
  const row = Number(query2.row);
  if (name === "times") return { head: {}, arrays: { times: { data: await rows(id, stored.times, 0, stored.times.shape[0]), shape: stored.times.shape } } };
  if (name === "packets") {
    const group = stored.groups?.find((each) => row >= each[2] && row <= each[3]);
    if (group) return unframe(await bytes2(id, group[0], group[1]));
    if (!stored.video) return { head: { codec: null }, arrays: {} };
    const { packets } = stored.video;
    return blobPackets(await blobUrl(id, stored.video.blob), stored.video, await rows(id, packets, 0, packets.shape[0]), row, query2.needed === 1);
  }
  if (stored.rows) return blobFrame(await blobUrl(id, stored.rows.blob), stored.rows, row, stored.limits ?? null);
  const frame = stored.frames?.[row];
  if (!frame) throw new Refused(415, "this browser cannot decode the camera, and an exported site cannot do it for it", "Open it with `warp view`.");
  const packed = new Blob([await bytes2(id, ...frame)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new Uint8Array(await new Response(packed).arrayBuffer());
  return { head: {}, arrays: { pixels: { data, shape: stored.shape } } };
}

// src/wire.ts
var Refused = class extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
};
var TYPES = { u1: Uint8Array, u2: Uint16Array, f4: Float32Array, f8: Float64Array };
var token = "";
var writeToken = "";
async function connect() {
  const found = /(?:^|[#&])t=([^&]+)/.exec(location.hash);
  if (found?.[1]) {
    token = decodeURIComponent(found[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
  const answer = await getJson("session", {});
  writeToken = answer.write_token;
}
function address(name, query2) {
  const text = new URLSearchParams();
  for (const [key, value] of Object.entries(query2)) if (value !== void 0) text.set(key, String(value));
  const rest = text.toString();
  return `api/${name}${rest ? `?${rest}` : ""}`;
}
async function ask(name, query2, options = {}) {
  const headers = new Headers(options.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let answer;
  try {
    answer = await fetch(address(name, query2), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the viewer does not answer", "Start it again with `warp view`.");
  }
  if (answer.ok) return answer;
  let said2 = {};
  try {
    said2 = await answer.json();
  } catch {
  }
  throw new Refused(answer.status, said2.error ?? `error ${answer.status}`, said2.hint ?? "");
}
async function getJson(name, query2, signal) {
  if (siteName()) return await siteJson(name, query2);
  return (await ask(name, query2, signal ? { signal } : {})).json();
}
async function getArrays(name, query2, signal) {
  if (siteName()) return siteArrays(name, query2);
  const answer = await ask(name, query2, signal ? { signal } : {});
  return unframe(await answer.arrayBuffer());
}
async function post(name, body) {
  if (siteName()) throw new Refused(403, "an exported site can only be read", "");
  const headers = { "Content-Type": "application/json", "X-Warp-Write": writeToken };
  return (await ask(name, {}, { method: "POST", headers, body: JSON.stringify(body) })).json();
}
function videoAddress(query2) {
  return address("video", query2);
}
async function soundAddress(episode, signal) {
  return siteName() ? siteSound(episode, signal) : videoAddress({ episode, signal });
}
function typed(dtype, buffer, at2, count) {
  return new TYPES[dtype](buffer, at2, count);
}
function unframe(buffer) {
  const bytes3 = new Uint8Array(buffer);
  if (bytes3.length < 8 || String.fromCharCode(...bytes3.subarray(0, 4)) !== "WDA1") throw new Error("not arrays");
  const length = new DataView(buffer).getUint32(4, true);
  const head = JSON.parse(new TextDecoder().decode(bytes3.subarray(8, 8 + length)));
  const start2 = Math.ceil((8 + length) / 8) * 8;
  const arrays = {};
  for (const [name, about2] of Object.entries(
    head.arrays
  )) {
    const count = about2.shape.reduce((a3, b) => a3 * b, 1);
    arrays[name] = { data: typed(about2.dtype, buffer, start2 + about2.at, count), shape: about2.shape };
  }
  return { head, arrays };
}
async function follow(name, heard) {
  for (; ; ) {
    try {
      const answer = await ask(name, {});
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (; ; ) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop() ?? "";
        for (const part of parts) if (part.startsWith("data: ")) heard(JSON.parse(part.slice(6)));
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return;
    }
    await new Promise((resolve) => setTimeout(resolve, 2e3));
  }
}

// src/actions.ts
var open = {
  info: null,
  marks: null,
  frameTimes: new Float64Array(0),
  trim: null,
  neighbours: () => [],
  setTrim: () => void 0,
  reload: () => void 0
};
function complain(error) {
  if (error.name === "AbortError") return;
  if (error instanceof Refused) say(error.message, error.hint, true);
  else say(error.message ?? String(error), "", true);
}
var turn = 0;
async function loadDataset() {
  const mine = ++turn;
  const dataset = await getJson("dataset", {});
  if (mine !== turn) return;
  set({ dataset, listGeneration: state.listGeneration + (state.dataset ? 1 : 0) });
  void learnColumns(mine).catch(complain);
}
async function learnColumns(mine) {
  while (mine === turn && !state.dataset.has_facts) {
    await new Promise((resolve) => setTimeout(resolve, 700));
    const { columns, has_facts } = await getJson("dataset", {});
    if (mine === turn && has_facts) set({ dataset: { ...state.dataset, columns, has_facts } });
  }
}
function goTo(episodeId) {
  if (episodeId === state.episodeId) return;
  jumpAsked = null;
  set({ episodeId, playing: false });
}
function goAt(episodeId, at2) {
  const there = () => clock.go(Number(at2 - clock.base));
  if (episodeId === state.episodeId) return there();
  clock.wanted = () => {
    clock.at = Math.min(Math.max(Number(at2 - clock.base), 0), clock.length);
  };
  goTo(episodeId);
}
async function momentsLikeThis() {
  if (!state.dataset?.has_moments) await loadDataset().catch(complain);
  if (!state.dataset?.has_moments) return say("no vector index of these episodes", "Make one with wd.TrajectoryIngestor, beside the root or published with the dataset.");
  if (open.info) set({ drawer: "moments", momentsOf: { episode: open.info.id, at: clock.time } });
}
function neighbour(by) {
  const ids = open.neighbours();
  if (!ids.length) return;
  const at2 = state.episodeId ? ids.indexOf(state.episodeId) : -1;
  const next = at2 < 0 ? by > 0 ? 0 : ids.length - 1 : at2 + by;
  if (ids[next] !== void 0) goTo(ids[next]);
}
function otherNeighbour(by) {
  const ids = open.neighbours();
  let at2 = ids.indexOf(state.otherId ?? state.episodeId ?? "") + by;
  if (ids[at2] === state.episodeId) at2 += by;
  if (ids[at2] !== void 0) set({ otherId: ids[at2] });
}
function compare2() {
  if (state.otherId) return set({ otherId: null });
  const ids = open.neighbours();
  const at2 = state.episodeId ? ids.indexOf(state.episodeId) : -1;
  const other = ids[at2 + 1] ?? ids[at2 - 1];
  if (other) set({ otherId: other });
}
function step(by) {
  const times = open.frameTimes;
  if (!times.length) return clock.go(clock.at + by * (clock.to - clock.from) / 100);
  let low2 = 0;
  let high2 = times.length;
  while (low2 < high2) {
    const middle = low2 + high2 >> 1;
    if (times[middle] <= clock.at) low2 = middle + 1;
    else high2 = middle;
  }
  const row = low2 - 1;
  const target = by < 0 && row >= 0 && times[row] < clock.at ? row : row + by;
  clock.go(times[Math.min(Math.max(target, 0), times.length - 1)]);
}
var jumpAsked = null;
function marksCame() {
  const jump2 = jumpAsked;
  jumpAsked = null;
  jump2?.();
}
function jump(timesOf, forward, what) {
  if (!open.marks) {
    jumpAsked = () => jump(timesOf, forward, what);
    return;
  }
  const times = timesOf(open.marks);
  const found = forward ? times.find((each) => each > clock.at) : times.findLast((each) => each < clock.at);
  if (found === void 0) say(`no ${forward ? "further" : "earlier"} ${what}`);
  else clock.go(found);
}
var nextEvent = (forward) => jump((marks) => marks.events.map((each) => each.at), forward, "event");
var nextGap = (forward) => jump((marks) => [...new Set(marks.gaps.map((each) => each.from))].sort((a3, b) => a3 - b), forward, "gap");
var worst = null;
async function worstError() {
  if (!open.info) return;
  if (worst?.id !== open.info.id) {
    const found = await getJson("errors", { episode: open.info.id });
    worst = { id: open.info.id, at: found.errors.map((each) => Number(BigInt(each.at_ns) - clock.base)), next: 0 };
  }
  const at2 = worst.at[worst.next % Math.max(1, worst.at.length)];
  if (at2 === void 0) return say("no prediction to compare with what came");
  worst.next++;
  clock.go(at2);
}
async function isHidden(id) {
  if (!state.where || state.whereError) return false;
  const where = `(${state.where}
) and id = '${id.replaceAll("'", "''")}'`;
  return (await getJson("episodes", { where, sort: "", order: "up", start: 0, count: 1 })).total === 0;
}
var isEditing = false;
async function edit(body, done) {
  if (state.dataset?.refusal) return say("this cannot be edited here", state.dataset.refusal, true);
  isEditing = true;
  try {
    const edited = body.op === "undrop" ? void 0 : body.episode;
    if (edited && await isHidden(edited))
      return say(`not changed: the filter hides ${named(edited)}`, "Choose an episode of the list, or clear the filter.", true);
    const effect = await post("edit", body);
    open.setTrim(null);
    const mine = state.episodeId;
    const gone = effect.before.some((each) => each.id === mine);
    const left = effect.after.find((each) => each.id === mine && !each.dropped);
    const ids = open.neighbours();
    const at2 = mine ? ids.indexOf(mine) : -1;
    if (gone && !left) goTo(effect.after.find((each) => !each.dropped)?.id ?? ids[at2 + 1] ?? ids[at2 - 1] ?? null);
    const next = ids[at2 + 1] ?? ids[at2 - 1];
    if (edited && mine === state.episodeId && next && next !== mine && await isHidden(edited)) goTo(next);
    await loadDataset();
    if (mine === state.episodeId) open.reload();
    say(done);
  } catch (error) {
    complain(error);
  } finally {
    isEditing = false;
  }
}
var current = () => open.info?.id ?? "";
var drop = () => edit({ op: "drop", episode: current() }, `dropped ${named(current())}`);
var undrop = (id) => edit({ op: "undrop", episode: id }, `${named(id)} is back`);
var undo = () => edit({ op: "undo" }, "undone");
var redo = () => edit({ op: "redo" }, "done again");
var split = () => edit({ op: "split", episode: current(), at_ns: clock.time.toString() }, `${named(current())} is split in two`);
var mark = (name, value) => edit({ op: "mark", episode: current(), name, value }, `${named(current())}: ${name} is ${JSON.stringify(value)}`);
function trim() {
  const chosen = open.trim;
  if (!chosen) {
    say("nothing to trim", "Drag the handles of the ruler, or press [ and ] at the cursor.");
    return Promise.resolve();
  }
  const absolute = (at2) => (clock.base + BigInt(Math.round(at2))).toString();
  const start2 = chosen.from > 0 ? absolute(chosen.from) : null;
  const end = chosen.to < clock.length ? absolute(chosen.to + 1) : null;
  return edit({ op: "trim", episode: current(), start_ns: start2, end_ns: end }, `${named(current())} is trimmed`);
}
function trimFrom() {
  open.setTrim({ from: clock.at, to: open.trim && open.trim.to > clock.at ? open.trim.to : clock.length });
}
function trimTo() {
  open.setTrim({ from: open.trim && open.trim.from < clock.at ? open.trim.from : 0, to: clock.at });
}
function theme() {
  set({ theme: state.isDark ? "light" : "dark" });
}
async function share() {
  try {
    await navigator.clipboard.writeText(location.href);
    say("the link to this moment is copied", "Whoever opens it needs a viewer of the same data.");
  } catch {
    say("the address bar holds the link to this moment");
  }
}
var SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];
function faster(by) {
  const at2 = SPEEDS.indexOf(state.speed);
  set({ speed: SPEEDS[Math.min(Math.max((at2 < 0 ? 3 : at2) + by, 0), SPEEDS.length - 1)] });
}

// src/address.ts
var linked = "";
function checkLink() {
  const name = state.dataset?.name ?? "";
  if (linked && linked !== name) say(`the link is to ${linked}`, `This is ${name}: open the link with a viewer of the other.`, true);
}
function readAddress() {
  const given = new URLSearchParams(location.search);
  linked = given.get("d") ?? "";
  const word = (name) => given.get(name) ?? "";
  const drawer = word("drawer");
  set({
    where: word("where"),
    sort: word("sort"),
    order: word("order") === "down" ? "down" : "up",
    episodeId: word("e") || null,
    otherId: word("with") || null,
    listOpen: word("list") !== "0",
    drawer: ["statics", "stats", "history", "moments"].includes(drawer) ? drawer : null,
    theme: word("theme") === "dark" ? "dark" : word("theme") === "light" ? "light" : "auto",
    hidden: new Set(given.getAll("hide")),
    plotOrder: given.getAll("plot"),
    speed: Number(word("speed")) || 1
  });
  if (matchMedia("(max-width: 700px)").matches && !word("list")) set({ listOpen: false });
  const number = (name) => /^-?\d+$/.test(word(name)) ? BigInt(word(name)) : null;
  const [at2, from, to] = [number("at"), number("from"), number("to")];
  if (at2 === null && from === null) return;
  clock.wanted = () => {
    if (from !== null && to !== null) clock.show(Number(from - clock.base), Number(to - clock.base));
    if (at2 !== null) clock.at = Math.min(Math.max(Number(at2 - clock.base), 0), clock.length);
  };
}
function written() {
  const said2 = new URLSearchParams();
  const put = (name, value) => {
    if (value) said2.append(name, value);
  };
  put("d", state.dataset?.name);
  put("e", state.episodeId);
  put("with", state.otherId);
  if (state.episodeId && clock.length > 1) {
    put("at", clock.time.toString());
    if (clock.from > 0 || clock.to < clock.length) {
      put("from", (clock.base + BigInt(Math.round(clock.from))).toString());
      put("to", (clock.base + BigInt(Math.round(clock.to))).toString());
    }
  }
  put("where", state.where);
  put("sort", state.sort);
  put("order", state.order === "down" && "down");
  put("list", !state.listOpen && "0");
  put("drawer", state.drawer);
  put("theme", state.theme !== "auto" && state.theme);
  put("speed", state.speed !== 1 && String(state.speed));
  for (const each of state.hidden) said2.append("hide", each);
  for (const each of state.plotOrder) said2.append("plot", each);
  return `?${said2.toString()}`;
}
function keepAddress() {
  let timer = 0;
  const soon = () => {
    if (timer) return;
    timer = window.setTimeout(() => {
      timer = 0;
      const text = written();
      if (text !== location.search) history.replaceState(null, "", location.pathname + text);
    }, 250);
  };
  onChange(soon);
  clock.onMove(soon);
  clock.onZoom(soon);
}

// src/decoder.ts
var PATIENCE_MS = 100;
var GroupDecoder = class {
  /** `out` gets every frame that has a row, and must close it. */
  constructor(out) {
    this.out = out;
  }
  decoder = null;
  config = null;
  /** What went in since the last keyframe: going on from there is cheaper than beginning again. */
  fed = null;
  stamp = 0;
  rows = /* @__PURE__ */ new Map();
  waiting = null;
  /** Decode until `row`, and `ahead` frames more, came out. */
  async decode(group, row, ahead) {
    await this.configure(group.config);
    const at2 = group.rows.indexOf(row);
    if (this.fed?.group !== group || this.fed.next > at2) this.fed = { group, next: 0 };
    const stop = group.isReordered ? group.packets.length : Math.min(group.packets.length, at2 + 1 + ahead);
    const came = new Promise((resolve, reject) => {
      this.waiting = { row, end: (error) => error ? reject(error) : resolve() };
    });
    came.catch(() => void 0);
    const decoder = this.decoder;
    for (let packet = this.fed.next; packet < stop; packet++) {
      this.rows.set(this.stamp, group.rows[packet]);
      const type = packet === 0 ? "key" : "delta";
      decoder.decode(new EncodedVideoChunk({ type, timestamp: this.stamp++, data: group.packets[packet] }));
    }
    this.fed.next = stop;
    let timer = 0;
    if (stop < group.packets.length) {
      const late = new Promise((resolve) => timer = window.setTimeout(() => resolve("late"), PATIENCE_MS));
      const first = await Promise.race([came, late]).finally(() => clearTimeout(timer));
      if (first !== "late") return;
    }
    this.fed = null;
    await decoder.flush();
    this.waiting = null;
  }
  close() {
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = null;
    this.waiting?.end(new Error("closed"));
  }
  async configure(config) {
    if (this.decoder?.state === "configured" && this.config === config) return;
    if (!(await VideoDecoder.isConfigSupported(config)).supported) throw new Error("not supported");
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = new VideoDecoder({
      output: (frame) => this.take(frame),
      error: (error) => this.waiting?.end(error)
    });
    this.decoder.configure(config);
    this.config = config;
    this.fed = null;
  }
  take(frame) {
    const row = this.rows.get(frame.timestamp) ?? -1;
    this.rows.delete(frame.timestamp);
    if (row < 0) frame.close();
    else this.out(frame, row);
    if (this.waiting && row === this.waiting.row) {
      this.waiting.end();
      this.waiting = null;
    }
  }
};

// src/cameras.ts
var KEPT_BYTES = 64 << 20;
var KEPT_ENCODED_BYTES = 32 << 20;
var AROUND_BYTES = 16 << 20;
var AHEAD = 8;
var BEHIND = 4;
var CALM_MS = 60;
var open2 = /* @__PURE__ */ new Set();
var isSettled = () => [...open2].every((each) => each.settled);
function grouped(config, rows2, packets) {
  const shown2 = rows2.filter((each) => each >= 0);
  const isReordered = shown2.some((each, i4) => i4 > 0 && each < shown2[i4 - 1]);
  return { config, rows: rows2, packets, bytes: packets.reduce((sum2, each) => sum2 + each.length, 0), isReordered };
}
var Camera = class {
  constructor(episode, signal, base, painted, failed) {
    this.episode = episode;
    this.signal = signal;
    this.base = base;
    this.painted = painted;
    this.failed = failed;
    const [a3 = 1, b = 1, c3] = signal.shape;
    const planesFirst = c3 !== void 0 && ![1, 3, 4].includes(c3);
    this.height = planesFirst ? b : a3;
    this.width = planesFirst ? c3 : b;
    this.usesCodec = signal.kind === "image" && typeof VideoDecoder !== "undefined" && signal.dtype === "uint8";
  }
  times = new Float64Array(0);
  width;
  height;
  wanted = -1;
  /** The frame on the screen: -1 for none yet at this time, -2 before anything was shown. */
  shown = -2;
  failure = "";
  kept = /* @__PURE__ */ new Map();
  coming = /* @__PURE__ */ new Map();
  /** Frames that came out before the wanted one: they become pictures when nobody moves. */
  passed = [];
  groups = /* @__PURE__ */ new Map();
  configs = /* @__PURE__ */ new Map();
  decoder = new GroupDecoder((frame, row) => this.take(frame, row));
  usesCodec;
  isPlaying = false;
  isBusy = false;
  isClosed = false;
  calm = 0;
  /** Read the times; the page is not settled before, also where the camera takes the place of one that showed a frame. */
  async open() {
    open2.add(this);
    try {
      const found = await getArrays("times", this.query({ base: this.base }));
      this.times = found.arrays.times.data;
    } catch (error) {
      this.failure = error.message;
      throw error;
    }
  }
  /** The last frame at or before a time, -1 before the first. */
  rowAt(at2) {
    let low2 = 0;
    let high2 = this.times.length;
    while (low2 < high2) {
      const middle = low2 + high2 >> 1;
      if (this.times[middle] <= at2) low2 = middle + 1;
      else high2 = middle;
    }
    return low2 - 1;
  }
  /** Paint the frame that holds at a time, as soon as it is there, unless another one is wanted by then. */
  show(at2, isPlaying = false) {
    const isFirst = this.shown === -2;
    this.wanted = this.rowAt(at2);
    this.isPlaying = isPlaying;
    this.paint();
    void this.work(isFirst);
    clearTimeout(this.calm);
    if (!isPlaying && this.usesCodec) this.calm = window.setTimeout(() => void this.rest(isFirst), CALM_MS);
  }
  get settled() {
    return this.wanted === this.shown || this.failure !== "";
  }
  close() {
    this.isClosed = true;
    open2.delete(this);
    clearTimeout(this.calm);
    this.decoder.close();
    for (const each of this.passed) each.frame.close();
    this.passed = [];
    for (const each of this.kept.values()) if (each instanceof ImageBitmap) each.close();
    this.kept.clear();
    this.groups.clear();
  }
  /** Show the wanted frame if it is here. */
  paint() {
    const row = this.wanted;
    const picture = this.kept.get(row);
    if (row === this.shown || row >= 0 && !picture) return;
    if (picture) {
      this.kept.delete(row);
      this.kept.set(row, picture);
    }
    this.see(picture ?? null, row);
  }
  see(picture, row) {
    this.failure = "";
    this.shown = row;
    this.painted(picture, row);
  }
  /** The frame to see to next: the wanted one, or while it plays one of those behind it; -1 for none. */
  next() {
    if (this.wanted < 0) return -1;
    if (this.wanted !== this.shown) return this.wanted;
    const stop = this.isPlaying ? Math.min(this.wanted + AHEAD + 1, this.times.length) : 0;
    for (let row = this.wanted + 1; row < stop; row++) if (!this.kept.has(row) && !this.coming.has(row)) return row;
    return -1;
  }
  /** One after the other until there is nothing to do; who scrubs past a frame does not wait for it. */
  async work(isFirst) {
    if (this.isBusy) return;
    this.isBusy = true;
    for (let row = this.next(); row >= 0 && !this.isClosed; row = this.next()) {
      try {
        if (this.coming.has(row)) await this.coming.get(row);
        else if (this.usesCodec) await this.loadGroup(row, isFirst);
        else await this.loadPixels(row);
        this.paint();
      } catch (error) {
        if (this.isClosed) break;
        if (row === this.wanted) {
          this.failure = `${error.message} ${error.hint ?? ""}`.trim();
          this.failed(this.failure);
        }
        if (row === this.next()) break;
      }
    }
    this.isBusy = false;
  }
  async loadPixels(row) {
    const rows2 = this.isPlaying ? [row, row + 1, row + 2, row + 3].filter((each) => each < this.times.length && !this.kept.has(each)) : [row];
    await Promise.all(rows2.map((each) => this.loadFrame(each)));
  }
  async loadFrame(row) {
    const found = await getArrays("frame", this.query({ row }));
    const { data, shape } = found.arrays.pixels;
    const [height = 0, width = 0, colours = 1] = shape;
    const image = new ImageData(width, height);
    const out = new Uint32Array(image.data.buffer);
    if (colours === 1) for (let i4 = 0; i4 < out.length; i4++) out[i4] = data[i4] * 65793 | 4278190080;
    else
      for (let i4 = 0, k3 = 0; i4 < out.length; i4++, k3 += 3)
        out[i4] = data[k3] | data[k3 + 1] << 8 | data[k3 + 2] << 16 | 4278190080;
    this.keep(row, image);
  }
  async loadGroup(row, isFirst) {
    const group = this.groups.get(row) ?? await this.bring(row, isFirst ? { needed: 1 } : {});
    if (row !== this.next()) return;
    try {
      if (!group) throw new Error("no codec");
      await this.decoder.decode(group, row, this.isPlaying ? AHEAD : 0);
      if (this.shown !== row && !this.kept.has(row) && !this.coming.has(row) && row === this.next()) throw new Error("the frame did not come out");
    } catch (error) {
      if (this.isClosed) throw error;
      this.usesCodec = false;
    }
  }
  /** The encoded frames around one; null where there are none. */
  async bring(row, more = {}) {
    const found = await getArrays("packets", this.query({ row, ...more }));
    const head = found.head;
    if (!head.codec) return null;
    const data = found.arrays.data.data;
    let at2 = 0;
    const packets = head.sizes.map((size) => data.subarray(at2, at2 += size));
    const starts = head.starts ?? [0];
    const config = this.configOf(head);
    const groups = starts.map((start2, i4) => grouped(config, head.rows.slice(start2, starts[i4 + 1]), packets.slice(start2, starts[i4 + 1])));
    for (const group of groups)
      for (const each of group.rows) {
        if (each < 0) continue;
        this.groups.delete(each);
        this.groups.set(each, group);
      }
    this.forgetGroups();
    return groups[0];
  }
  configOf(head) {
    const key = `${head.codec} ${head.description}`;
    let config = this.configs.get(key);
    if (!config) {
      config = { codec: head.codec, codedWidth: head.coded[0], codedHeight: head.coded[1], optimizeForLatency: true };
      if (head.description) config.description = Uint8Array.from(atob(head.description), (c3) => c3.charCodeAt(0));
      this.configs.set(key, config);
    }
    return config;
  }
  forgetGroups() {
    let bytes3 = this.encodedBytes();
    for (const oldest of this.groups.values()) {
      if (bytes3 <= KEPT_ENCODED_BYTES) break;
      bytes3 -= oldest.bytes;
      for (const row of oldest.rows) if (this.groups.get(row) === oldest) this.groups.delete(row);
    }
  }
  /** What is not here yet around the frame that is seen: both neighbours, or all of a short video that costs no network. */
  async lookAround() {
    const rows2 = this.groups.get(this.wanted)?.rows.filter((each) => each >= 0);
    if (!rows2?.length || !this.settled) return;
    const around = [Math.max(...rows2) + 1, Math.min(...rows2) - 1];
    const isHere = state.dataset?.is_here;
    for (let row = around.shift(); row !== void 0; row = around.shift()) {
      if (row >= 0 && row < this.times.length && !this.groups.has(row)) {
        const group = await this.bring(row, isHere ? { many: 1 } : {}).catch(() => null);
        if (!group || !this.groups.has(row) || !this.settled || this.isClosed) return;
      }
      if (isHere && !around.length && this.encodedBytes() < AROUND_BYTES) around.push(...this.missing());
    }
  }
  /** The first frame that no group is here of. */
  missing() {
    for (let row = 0; row < this.times.length; row++) if (!this.groups.has(row)) return [row];
    return [];
  }
  encodedBytes() {
    return [...new Set(this.groups.values())].reduce((sum2, each) => sum2 + each.bytes, 0);
  }
  /** A frame of the decoder: the wanted one goes to the screen at once, what is near it is kept. */
  take(frame, row) {
    const isWanted = row === this.wanted && this.shown !== row;
    if (isWanted) this.see(frame, row);
    const isNear = row >= this.wanted - BEHIND && row <= this.wanted + AHEAD;
    if (!isNear || this.isClosed || this.kept.has(row) || this.coming.has(row)) return frame.close();
    if (this.isPlaying) return this.convert(frame, row);
    this.passed.push({ frame, row });
    while (this.passed.length > BEHIND + 1) this.passed.shift().frame.close();
  }
  /** Nobody moves: make pictures of the frames that were passed, and bring the groups around the one that is seen. */
  async rest(isFirst) {
    if (!isSettled()) {
      this.calm = window.setTimeout(() => void this.rest(isFirst), CALM_MS);
      return;
    }
    for (const { frame, row } of this.passed.splice(0)) {
      if (row < this.wanted - BEHIND || row > this.wanted || this.kept.has(row) || this.coming.has(row)) frame.close();
      else this.convert(frame, row);
    }
    if (!isFirst) await this.lookAround();
  }
  convert(frame, row) {
    const made = createImageBitmap(frame, 0, 0, this.width, this.height).then((picture) => this.keep(row, picture)).catch(() => {
      this.usesCodec = false;
    }).finally(() => {
      frame.close();
      this.coming.delete(row);
    });
    this.coming.set(row, made);
  }
  keep(row, picture) {
    if (this.isClosed) return picture instanceof ImageBitmap ? picture.close() : void 0;
    this.kept.set(row, picture);
    if (row === this.wanted) this.paint();
    const most = Math.max(2 * AHEAD, KEPT_BYTES / (this.width * this.height * 4));
    for (const [old, each] of this.kept) {
      if (this.kept.size <= most) break;
      if (old === this.wanted) continue;
      if (each instanceof ImageBitmap) each.close();
      this.kept.delete(old);
    }
  }
  query(more) {
    return { episode: this.episode, signal: this.signal.number, ...more };
  }
};

// node_modules/preact/jsx-runtime/dist/jsxRuntime.module.js
var f3 = 0;
var i3 = Array.isArray;
function u3(e3, t3, n2, o3, i4, u4) {
  t3 || (t3 = {});
  var a3, c3, p3 = t3;
  if ("ref" in p3) for (c3 in p3 = {}, t3) "ref" == c3 ? a3 = t3[c3] : p3[c3] = t3[c3];
  var l3 = { type: e3, props: p3, key: n2, ref: a3, __k: null, __: null, __b: 0, __e: null, __c: null, constructor: void 0, __v: --f3, __i: -1, __u: 0, __source: i4, __self: u4 };
  if ("function" == typeof e3 && (a3 = e3.defaultProps)) for (c3 in a3) void 0 === p3[c3] && (p3[c3] = a3[c3]);
  return l.vnode && l.vnode(l3), l3;
}

// src/list.tsx
var ROW = 56;
var PAGE = 100;
var MOST_PATIENCE_MS = 5e3;
var MANY_WAIT = 60;
var LITTLE_BYTES = 2 * 1024 ** 3;
var thumbnails = /* @__PURE__ */ new Map();
var thumbnailsBusy = 0;
var thumbnailsWaiting = [];
var seen = null;
function firstSight() {
  const isThere = () => isSettled() && document.querySelector(".camera canvas[data-row], .no-cameras") !== null && document.querySelector(".chart[data-points]") !== null;
  seen ??= new Promise((resolve) => {
    const until = performance.now() + MOST_PATIENCE_MS;
    const look = () => void (isThere() || performance.now() > until ? resolve() : setTimeout(look, 50));
    look();
  });
  return seen;
}
async function loadThumbnail(id, at2) {
  if (!state.dataset?.is_here) await firstSight();
  if (thumbnailsBusy >= 4) await new Promise((resolve) => thumbnailsWaiting.push(resolve));
  thumbnailsBusy++;
  try {
    const pixels = (await getArrays("thumbnail", { episode: id, at: at2 })).arrays.pixels;
    if (!pixels) return null;
    const [height = 0, width = 0, colours = 1] = pixels.shape;
    const image = new ImageData(width, height);
    for (let i4 = 0; i4 < width * height; i4++)
      for (let c3 = 0; c3 < 4; c3++)
        image.data[i4 * 4 + c3] = c3 === 3 ? 255 : pixels.data[i4 * colours + (colours === 1 ? 0 : c3)];
    return image;
  } catch {
    return null;
  } finally {
    thumbnailsBusy--;
    thumbnailsWaiting.shift()?.();
  }
}
function Thumbnail({ id, version, at: at2 }) {
  const canvas = A2(null);
  y2(() => {
    let gone = false;
    const key = `${id}@${version} ${at2 ?? ""}`;
    if (!thumbnails.has(key)) thumbnails.set(key, loadThumbnail(id, at2));
    void thumbnails.get(key).then((image) => {
      if (gone || !image || !canvas.current) return;
      canvas.current.width = image.width;
      canvas.current.height = image.height;
      canvas.current.getContext("2d").putImageData(image, 0, 0);
    });
    return () => {
      gone = true;
    };
  }, [id, version, at2]);
  return /* @__PURE__ */ u3("canvas", { ref: canvas, class: "thumbnail", width: 64, height: 48, "aria-hidden": "true" });
}
function EpisodeList() {
  const model = useModel();
  const box = A2(null);
  const [pages, setPages] = d2(/* @__PURE__ */ new Map());
  const [total, setTotal] = d2(0);
  const [live, setLive] = d2([]);
  const [top, setTop] = d2(0);
  const [height, setHeight] = d2(600);
  const asked = A2(/* @__PURE__ */ new Set());
  const key = JSON.stringify([model.where, model.sort, model.order, model.listGeneration]);
  const latest = A2(key);
  latest.current = key;
  const loaded = A2("");
  async function load2(page) {
    if (asked.current.has(page)) return;
    asked.current.add(page);
    const mine = key;
    try {
      const { where, sort, order } = state;
      const found = await getJson("episodes", { where, sort, order, start: page * PAGE, count: PAGE });
      if (latest.current !== mine) return;
      setTotal(found.total);
      setLive(found.live);
      const isFirst = loaded.current !== mine;
      loaded.current = mine;
      setPages((old) => new Map(isFirst ? [] : old).set(page, found));
      if (state.whereError) set({ whereError: "" });
    } catch (error) {
      if (latest.current !== mine) return;
      if (error instanceof Refused && error.status === 400 || error.status === 422)
        set({ whereError: `${error.message} ${error.hint}` });
      else complain(error);
    }
  }
  y2(() => {
    asked.current = /* @__PURE__ */ new Set();
    void load2(Math.floor((box.current?.scrollTop ?? 0) / ROW / PAGE));
  }, [key]);
  _2(() => {
    const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight ?? 600));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const rowAt = (position2) => pages.get(Math.floor(position2 / PAGE))?.rows[position2 % PAGE];
  const first = Math.max(0, Math.floor(top / ROW) - 4);
  const last = Math.min(total, Math.ceil((top + height) / ROW) + 4);
  y2(() => {
    for (let page = Math.floor(first / PAGE); page * PAGE < last; page++) if (!pages.has(page)) void load2(page);
  });
  open.neighbours = () => {
    const ids = live.map((row) => row.id);
    for (const page of [...pages.keys()].sort((a3, b) => a3 - b)) for (const row of pages.get(page).rows) ids.push(row.id);
    return ids;
  };
  y2(() => {
    if (!model.episodeId) {
      const begin = model.dataset?.selected ?? rowAt(0)?.id ?? live[0]?.id;
      if (begin) goTo(begin);
    }
  });
  y2(() => {
    for (const [number, page] of pages) {
      const at2 = page.rows.findIndex((row) => row.id === model.episodeId);
      if (at2 < 0 || !box.current) continue;
      const y3 = (number * PAGE + at2) * ROW;
      if (y3 < box.current.scrollTop) box.current.scrollTop = y3;
      else if (y3 + ROW > box.current.scrollTop + box.current.clientHeight)
        box.current.scrollTop = y3 + ROW - box.current.clientHeight;
    }
  }, [model.episodeId]);
  const positions = Array.from({ length: Math.max(0, last - first) }, (_4, i4) => first + i4);
  return /* @__PURE__ */ u3("nav", { class: "list", "data-testid": "episode-list", "aria-label": "Episodes", children: [
    /* @__PURE__ */ u3("header", { class: "list-head", children: [
      /* @__PURE__ */ u3("span", { children: [
        pages.size > 0 && total.toLocaleString("en"),
        " ",
        pages.size === 0 ? "" : model.where && !model.whereError ? "found" : total === 1 ? "episode" : "episodes"
      ] }),
      /* @__PURE__ */ u3("label", { children: [
        /* @__PURE__ */ u3("span", { class: "sr", children: "Sort by" }),
        /* @__PURE__ */ u3("select", { value: model.sort, onChange: (event) => set({ sort: event.currentTarget.value }), children: [
          /* @__PURE__ */ u3("option", { value: "", children: "recorded order" }),
          ["length", "duration_s", "task", "success", "total_reward", "recorded_ns"].map((name) => /* @__PURE__ */ u3("option", { value: name, children: name }, name))
        ] })
      ] }),
      /* @__PURE__ */ u3(
        "button",
        {
          class: "quiet",
          "aria-label": model.order === "up" ? "Ascending" : "Descending",
          title: "Turn the order around",
          onClick: () => set({ order: state.order === "up" ? "down" : "up" }),
          children: model.order === "up" ? "↑" : "↓"
        }
      )
    ] }),
    live.map((row) => /* @__PURE__ */ u3(LiveRow, { row }, row.id)),
    /* @__PURE__ */ u3(
      "div",
      {
        class: "rows",
        ref: box,
        role: "listbox",
        "aria-label": "Episodes",
        tabIndex: 0,
        onScroll: (event) => setTop(event.currentTarget.scrollTop),
        children: [
          /* @__PURE__ */ u3("div", { class: "rows-height", style: { height: `${total * ROW}px` }, children: positions.map((position2) => {
            const row = rowAt(position2);
            return /* @__PURE__ */ u3(
              "div",
              {
                class: `row${row?.id === model.episodeId ? " chosen" : ""}`,
                role: "option",
                "aria-selected": row?.id === model.episodeId,
                "data-testid": row ? "episode-row" : void 0,
                "data-id": row?.id,
                style: { transform: `translateY(${position2 * ROW}px)` },
                onClick: (event) => row && (event.shiftKey ? set({ otherId: row.id }) : goTo(row.id)),
                children: row && /* @__PURE__ */ u3(RowBody, { row, version: pages.get(Math.floor(position2 / PAGE)).generation })
              },
              row?.id ?? position2
            );
          }) }),
          total === 0 && pages.size > 0 && /* @__PURE__ */ u3("p", { class: "blank", children: model.where ? /* @__PURE__ */ u3(k, { children: [
            "No episode satisfies the filter.",
            /* @__PURE__ */ u3("br", {}),
            /* @__PURE__ */ u3("button", { class: "link", onClick: () => set({ where: "" }), children: "Show all" })
          ] }) : live.length ? "" : "No episodes yet: record one, and it appears here." })
        ]
      }
    )
  ] });
}
function RowBody({ row, version }) {
  const { checks } = useModel();
  const far = checks?.far[row.id];
  const worst2 = row.problems?.length ? "damaged" : checks ? checks.worst[row.id] : row.worst;
  return /* @__PURE__ */ u3(k, { children: [
    /* @__PURE__ */ u3(Thumbnail, { id: row.id, version }),
    /* @__PURE__ */ u3("div", { class: "row-text", children: [
      /* @__PURE__ */ u3("strong", { title: row.id, children: named(row.id) }),
      /* @__PURE__ */ u3("span", { class: "dim cut", children: row.task ?? "" })
    ] }),
    /* @__PURE__ */ u3("div", { class: "row-side", children: [
      /* @__PURE__ */ u3("span", { children: row.duration_s == null ? "" : `${row.duration_s.toFixed(1)} s` }),
      /* @__PURE__ */ u3("span", { children: [
        far && /* @__PURE__ */ u3("span", { class: "flag far", title: `far from the others in ${far.join(", ")}`, "aria-label": "outlier", children: "◇" }),
        worst2 && worst2 !== "info" && /* @__PURE__ */ u3("span", { class: `flag ${worst2}`, title: `check: ${worst2}`, "aria-label": worst2, children: worst2 === "damaged" ? "✖" : "⚠" }),
        row.success === true && /* @__PURE__ */ u3("span", { class: "flag good", title: "success", "aria-label": "success", children: "✓" }),
        row.success === false && /* @__PURE__ */ u3("span", { class: "flag", title: "failure", "aria-label": "failure", children: "✗" })
      ] })
    ] })
  ] });
}
function RecordingCounts({ id }) {
  const { live } = useModel();
  const found = live?.recordings.find((each) => each.id === id);
  if (!found) return null;
  const waiting = Object.values(found.backlog ?? {}).reduce((a3, b) => a3 + b, 0);
  const count = (name, value, title, isBad) => value === void 0 ? null : /* @__PURE__ */ u3("span", { class: isBad && value > 0 ? "bad" : "", "data-count": name, "data-value": value, title, children: [
    /* @__PURE__ */ u3("b", { children: value.toLocaleString("en") }),
    " ",
    name
  ] });
  const blocked = found.blocked_ns ? ` (${spoken(found.blocked_ns)} in all)` : "";
  return /* @__PURE__ */ u3("span", { class: "counts dim", children: [
    count("waiting", waiting, "frames that wait for the encoder", waiting > MANY_WAIT),
    count("dropped", found.dropped, "frames that the policy of a camera dropped", true),
    count("refused", found.refused, "values that the recorder refused: they are not in the recording", true),
    count("blocked", found.blocked, `calls that had to wait for the encoder${blocked}`, true),
    live?.free_bytes !== void 0 && /* @__PURE__ */ u3("span", { class: live.free_bytes < LITTLE_BYTES ? "bad" : "", "data-count": "free", "data-value": live.free_bytes, title: "space left on the disk", children: [
      /* @__PURE__ */ u3("b", { children: bytes(live.free_bytes) }),
      " free"
    ] })
  ] });
}
function LiveRow({ row }) {
  const { live, episodeId } = useModel();
  const found = live?.recordings.find((each) => each.id === row.id);
  const records = Object.values(found?.records ?? {}).reduce((a3, b) => a3 + b, 0);
  return /* @__PURE__ */ u3(
    "button",
    {
      class: `row live${row.id === episodeId ? " chosen" : ""}`,
      "data-testid": "episode-row",
      "data-id": row.id,
      "data-live": "true",
      "data-records": records,
      onClick: () => goTo(row.id),
      children: [
        /* @__PURE__ */ u3("span", { class: found?.is_live ? "record-dot" : "record-dot off", "aria-hidden": "true" }),
        /* @__PURE__ */ u3("span", { class: "row-text", children: [
          /* @__PURE__ */ u3("strong", { children: [
            named(row.id),
            " · ",
            found?.is_live ? "recording" : "not finished"
          ] }),
          /* @__PURE__ */ u3("span", { class: "dim", children: [
            records.toLocaleString("en"),
            " records",
            found?.lost && !found.is_live ? `, ${found.lost} unreadable` : ""
          ] }),
          /* @__PURE__ */ u3(RecordingCounts, { id: row.id })
        ] })
      ]
    }
  );
}

// node_modules/uplot/dist/uPlot.esm.js
var FEAT_TIME = true;
var pre = "u-";
var UPLOT = "uplot";
var ORI_HZ = pre + "hz";
var ORI_VT = pre + "vt";
var TITLE = pre + "title";
var WRAP = pre + "wrap";
var UNDER = pre + "under";
var OVER = pre + "over";
var AXIS = pre + "axis";
var OFF = pre + "off";
var SELECT = pre + "select";
var CURSOR_X = pre + "cursor-x";
var CURSOR_Y = pre + "cursor-y";
var CURSOR_PT = pre + "cursor-pt";
var LEGEND = pre + "legend";
var LEGEND_LIVE = pre + "live";
var LEGEND_INLINE = pre + "inline";
var LEGEND_SERIES = pre + "series";
var LEGEND_MARKER = pre + "marker";
var LEGEND_LABEL = pre + "label";
var LEGEND_VALUE = pre + "value";
var WIDTH = "width";
var HEIGHT = "height";
var TOP = "top";
var BOTTOM = "bottom";
var LEFT = "left";
var RIGHT = "right";
var hexBlack = "#000";
var transparent = hexBlack + "0";
var mousemove = "mousemove";
var mousedown = "mousedown";
var mouseup = "mouseup";
var mouseenter = "mouseenter";
var mouseleave = "mouseleave";
var dblclick = "dblclick";
var resize = "resize";
var scroll = "scroll";
var change = "change";
var dppxchange = "dppxchange";
var LEGEND_DISP = "--";
var domEnv = typeof window != "undefined";
var doc = domEnv ? document : null;
var win = domEnv ? window : null;
var nav = domEnv ? navigator : null;
var pxRatio;
var query;
function setPxRatio() {
  let _pxRatio = devicePixelRatio;
  if (pxRatio != _pxRatio) {
    pxRatio = _pxRatio;
    query && off(change, query, setPxRatio);
    query = matchMedia(`(min-resolution: ${pxRatio - 1e-3}dppx) and (max-resolution: ${pxRatio + 1e-3}dppx)`);
    on(change, query, setPxRatio);
    win.dispatchEvent(new CustomEvent(dppxchange));
  }
}
function addClass(el, c3) {
  if (c3 != null) {
    let cl = el.classList;
    !cl.contains(c3) && cl.add(c3);
  }
}
function remClass(el, c3) {
  let cl = el.classList;
  cl.contains(c3) && cl.remove(c3);
}
function setStylePx(el, name, value) {
  el.style[name] = value + "px";
}
function placeTag(tag, cls, targ, refEl) {
  let el = doc.createElement(tag);
  if (cls != null)
    addClass(el, cls);
  if (targ != null)
    targ.insertBefore(el, refEl);
  return el;
}
function placeDiv(cls, targ) {
  return placeTag("div", cls, targ);
}
var xformCache = /* @__PURE__ */ new WeakMap();
function elTrans(el, xPos, yPos, xMax, yMax) {
  let xform = "translate(" + xPos + "px," + yPos + "px)";
  let xformOld = xformCache.get(el);
  if (xform != xformOld) {
    el.style.transform = xform;
    xformCache.set(el, xform);
    if (xPos < 0 || yPos < 0 || xPos > xMax || yPos > yMax)
      addClass(el, OFF);
    else
      remClass(el, OFF);
  }
}
var colorCache = /* @__PURE__ */ new WeakMap();
function elColor(el, background, borderColor) {
  let newColor = background + borderColor;
  let oldColor = colorCache.get(el);
  if (newColor != oldColor) {
    colorCache.set(el, newColor);
    el.style.background = background;
    el.style.borderColor = borderColor;
  }
}
var sizeCache = /* @__PURE__ */ new WeakMap();
function elSize(el, newWid, newHgt, centered) {
  let newSize = newWid + "" + newHgt;
  let oldSize = sizeCache.get(el);
  if (newSize != oldSize) {
    sizeCache.set(el, newSize);
    el.style.height = newHgt + "px";
    el.style.width = newWid + "px";
    el.style.marginLeft = centered ? -newWid / 2 + "px" : 0;
    el.style.marginTop = centered ? -newHgt / 2 + "px" : 0;
  }
}
var evOpts = { passive: true };
var evOpts2 = { ...evOpts, capture: true };
function on(ev, el, cb, capt) {
  el.addEventListener(ev, cb, capt ? evOpts2 : evOpts);
}
function off(ev, el, cb, capt) {
  el.removeEventListener(ev, cb, evOpts);
}
domEnv && setPxRatio();
function closestIdx(num, arr, lo, hi) {
  let mid;
  lo = lo || 0;
  hi = hi || arr.length - 1;
  let bitwise = hi <= 2147483647;
  while (hi - lo > 1) {
    mid = bitwise ? lo + hi >> 1 : floor((lo + hi) / 2);
    if (arr[mid] < num)
      lo = mid;
    else
      hi = mid;
  }
  if (num - arr[lo] <= arr[hi] - num)
    return lo;
  return hi;
}
function makeIndexOfs(predicate) {
  let indexOfs = (data, _i0, _i1) => {
    let i0 = -1;
    let i1 = -1;
    for (let i4 = _i0; i4 <= _i1; i4++) {
      if (predicate(data[i4])) {
        i0 = i4;
        break;
      }
    }
    for (let i4 = _i1; i4 >= _i0; i4--) {
      if (predicate(data[i4])) {
        i1 = i4;
        break;
      }
    }
    return [i0, i1];
  };
  return indexOfs;
}
var notNullish = (v3) => v3 != null;
var isPositive = (v3) => v3 != null && v3 > 0;
var nonNullIdxs = makeIndexOfs(notNullish);
var positiveIdxs = makeIndexOfs(isPositive);
function getMinMax(data, _i0, _i1, sorted = 0, log = false) {
  let getEdgeIdxs = log ? positiveIdxs : nonNullIdxs;
  let predicate = log ? isPositive : notNullish;
  [_i0, _i1] = getEdgeIdxs(data, _i0, _i1);
  let _min = data[_i0];
  let _max = data[_i0];
  if (_i0 > -1) {
    if (sorted == 1) {
      _min = data[_i0];
      _max = data[_i1];
    } else if (sorted == -1) {
      _min = data[_i1];
      _max = data[_i0];
    } else {
      for (let i4 = _i0; i4 <= _i1; i4++) {
        let v3 = data[i4];
        if (predicate(v3)) {
          if (v3 < _min)
            _min = v3;
          else if (v3 > _max)
            _max = v3;
        }
      }
    }
  }
  return [_min ?? inf, _max ?? -inf];
}
function rangeLog(min2, max2, base, fullMags) {
  let minSign = sign(min2);
  let maxSign = sign(max2);
  if (min2 == max2) {
    if (minSign == -1) {
      min2 *= base;
      max2 /= base;
    } else {
      min2 /= base;
      max2 *= base;
    }
  }
  let logFn = base == 10 ? log10 : log2;
  let growMinAbs = minSign == 1 ? floor : ceil;
  let growMaxAbs = maxSign == 1 ? ceil : floor;
  let minExp = growMinAbs(logFn(abs(min2)));
  let maxExp = growMaxAbs(logFn(abs(max2)));
  let minIncr = pow(base, minExp);
  let maxIncr = pow(base, maxExp);
  if (base == 10) {
    if (minExp < 0)
      minIncr = roundDec(minIncr, -minExp);
    if (maxExp < 0)
      maxIncr = roundDec(maxIncr, -maxExp);
  }
  if (fullMags || base == 2) {
    min2 = minIncr * minSign;
    max2 = maxIncr * maxSign;
  } else {
    min2 = incrRoundDn(min2, minIncr);
    max2 = incrRoundUp(max2, maxIncr);
  }
  return [min2, max2];
}
function rangeAsinh(min2, max2, base, fullMags) {
  let minMax = rangeLog(min2, max2, base, fullMags);
  if (min2 == 0)
    minMax[0] = 0;
  if (max2 == 0)
    minMax[1] = 0;
  return minMax;
}
var rangePad = 0.1;
var autoRangePart = {
  mode: 3,
  pad: rangePad
};
var _eqRangePart = {
  pad: 0,
  soft: null,
  mode: 0
};
var _eqRange = {
  min: _eqRangePart,
  max: _eqRangePart
};
function rangeNum(_min, _max, mult, extra) {
  if (isObj(mult))
    return _rangeNum(_min, _max, mult);
  _eqRangePart.pad = mult;
  _eqRangePart.soft = extra ? 0 : null;
  _eqRangePart.mode = extra ? 3 : 0;
  return _rangeNum(_min, _max, _eqRange);
}
function ifNull(lh, rh) {
  return lh == null ? rh : lh;
}
function hasData(data, idx0, idx1) {
  idx0 = ifNull(idx0, 0);
  idx1 = ifNull(idx1, data.length - 1);
  while (idx0 <= idx1) {
    if (data[idx0] != null)
      return true;
    idx0++;
  }
  return false;
}
function _rangeNum(_min, _max, cfg) {
  let cmin = cfg.min;
  let cmax = cfg.max;
  let padMin = ifNull(cmin.pad, 0);
  let padMax = ifNull(cmax.pad, 0);
  let hardMin = ifNull(cmin.hard, -inf);
  let hardMax = ifNull(cmax.hard, inf);
  let softMin = ifNull(cmin.soft, inf);
  let softMax = ifNull(cmax.soft, -inf);
  let softMinMode = ifNull(cmin.mode, 0);
  let softMaxMode = ifNull(cmax.mode, 0);
  let delta = _max - _min;
  let deltaMag = log10(delta);
  let scalarMax = max(abs(_min), abs(_max));
  let scalarMag = log10(scalarMax);
  let scalarMagDelta = abs(scalarMag - deltaMag);
  if (delta < 1e-24 || scalarMagDelta > 10) {
    delta = 0;
    if (_min == 0 || _max == 0) {
      delta = 1e-24;
      if (softMinMode == 2 && softMin != inf)
        padMin = 0;
      if (softMaxMode == 2 && softMax != -inf)
        padMax = 0;
    }
  }
  let nonZeroDelta = delta || scalarMax || 1e3;
  let mag = log10(nonZeroDelta);
  let base = pow(10, floor(mag));
  let _padMin = nonZeroDelta * (delta == 0 ? _min == 0 ? 0.1 : 1 : padMin);
  let _newMin = roundDec(incrRoundDn(_min - _padMin, base / 10), 24);
  let _softMin = _min >= softMin && (softMinMode == 1 || softMinMode == 3 && _newMin <= softMin || softMinMode == 2 && _newMin >= softMin) ? softMin : inf;
  let minLim = max(hardMin, _newMin < _softMin && _min >= _softMin ? _softMin : min(_softMin, _newMin));
  let _padMax = nonZeroDelta * (delta == 0 ? _max == 0 ? 0.1 : 1 : padMax);
  let _newMax = roundDec(incrRoundUp(_max + _padMax, base / 10), 24);
  let _softMax = _max <= softMax && (softMaxMode == 1 || softMaxMode == 3 && _newMax >= softMax || softMaxMode == 2 && _newMax <= softMax) ? softMax : -inf;
  let maxLim = min(hardMax, _newMax > _softMax && _max <= _softMax ? _softMax : max(_softMax, _newMax));
  if (minLim == maxLim && minLim == 0)
    maxLim = 100;
  return [minLim, maxLim];
}
var numFormatter = new Intl.NumberFormat(domEnv ? nav.language : "en-US");
var fmtNum = (val) => numFormatter.format(val);
var M2 = Math;
var PI = M2.PI;
var abs = M2.abs;
var floor = M2.floor;
var round2 = M2.round;
var ceil = M2.ceil;
var min = M2.min;
var max = M2.max;
var pow = M2.pow;
var sign = M2.sign;
var log10 = M2.log10;
var log2 = M2.log2;
var sinh = (v3, linthresh = 1) => M2.sinh(v3) * linthresh;
var asinh = (v3, linthresh = 1) => M2.asinh(v3 / linthresh);
var inf = Infinity;
function numIntDigits(x2) {
  return (log10((x2 ^ x2 >> 31) - (x2 >> 31)) | 0) + 1;
}
function clamp(num, _min, _max) {
  return min(max(num, _min), _max);
}
function isFn(v3) {
  return typeof v3 == "function";
}
function fnOrSelf(v3) {
  return isFn(v3) ? v3 : () => v3;
}
var noop = () => {
};
var retArg0 = (_0) => _0;
var retArg1 = (_0, _1) => _1;
var retNull = (_4) => null;
var retTrue = (_4) => true;
var retEq = (a3, b) => a3 == b;
var regex6 = /\.\d*?(?=9{6,}|0{6,})/gm;
var fixFloat = (val) => {
  if (isInt(val) || fixedDec.has(val))
    return val;
  const str = `${val}`;
  const match = str.match(regex6);
  if (match == null)
    return val;
  let len = match[0].length - 1;
  if (str.indexOf("e-") != -1) {
    let [num, exp] = str.split("e");
    return +`${fixFloat(num)}e${exp}`;
  }
  return roundDec(val, len);
};
function incrRound(num, incr) {
  return fixFloat(roundDec(fixFloat(num / incr)) * incr);
}
function incrRoundUp(num, incr) {
  return fixFloat(ceil(fixFloat(num / incr)) * incr);
}
function incrRoundDn(num, incr) {
  return fixFloat(floor(fixFloat(num / incr)) * incr);
}
function roundDec(val, dec = 0) {
  if (isInt(val))
    return val;
  let p3 = 10 ** dec;
  let n2 = val * p3 * (1 + Number.EPSILON);
  return round2(n2) / p3;
}
var fixedDec = /* @__PURE__ */ new Map();
function guessDec(num) {
  return (("" + num).split(".")[1] || "").length;
}
function genIncrs(base, minExp, maxExp, mults) {
  let incrs = [];
  let multDec = mults.map(guessDec);
  for (let exp = minExp; exp < maxExp; exp++) {
    let expa = abs(exp);
    let mag = roundDec(pow(base, exp), expa);
    for (let i4 = 0; i4 < mults.length; i4++) {
      let _incr = base == 10 ? +`${mults[i4]}e${exp}` : mults[i4] * mag;
      let dec = (exp >= 0 ? 0 : expa) + (exp >= multDec[i4] ? 0 : multDec[i4]);
      let incr = base == 10 ? _incr : roundDec(_incr, dec);
      incrs.push(incr);
      fixedDec.set(incr, dec);
    }
  }
  return incrs;
}
var EMPTY_OBJ = {};
var EMPTY_ARR = [];
var nullNullTuple = [null, null];
var isArr = Array.isArray;
var isInt = Number.isInteger;
var isUndef = (v3) => v3 === void 0;
function isStr(v3) {
  return typeof v3 == "string";
}
function isObj(v3) {
  let is = false;
  if (v3 != null) {
    let c3 = v3.constructor;
    is = c3 == null || c3 == Object;
  }
  return is;
}
function fastIsObj(v3) {
  return v3 != null && typeof v3 == "object";
}
var TypedArray = Object.getPrototypeOf(Uint8Array);
var __proto__ = "__proto__";
function copy(o3, _isObj = isObj) {
  let out;
  if (isArr(o3)) {
    let val = o3.find((v3) => v3 != null);
    if (isArr(val) || _isObj(val)) {
      out = Array(o3.length);
      for (let i4 = 0; i4 < o3.length; i4++)
        out[i4] = copy(o3[i4], _isObj);
    } else
      out = o3.slice();
  } else if (o3 instanceof TypedArray)
    out = o3.slice();
  else if (_isObj(o3)) {
    out = {};
    for (let k3 in o3) {
      if (k3 != __proto__)
        out[k3] = copy(o3[k3], _isObj);
    }
  } else
    out = o3;
  return out;
}
function assign(targ) {
  let args = arguments;
  for (let i4 = 1; i4 < args.length; i4++) {
    let src = args[i4];
    for (let key in src) {
      if (key != __proto__) {
        if (isObj(targ[key]))
          assign(targ[key], copy(src[key]));
        else
          targ[key] = copy(src[key]);
      }
    }
  }
  return targ;
}
var NULL_REMOVE = 0;
var NULL_RETAIN = 1;
var NULL_EXPAND = 2;
function nullExpand(yVals, nullIdxs, alignedLen) {
  for (let i4 = 0, xi, lastNullIdx = -1; i4 < nullIdxs.length; i4++) {
    let nullIdx = nullIdxs[i4];
    if (nullIdx > lastNullIdx) {
      xi = nullIdx - 1;
      while (xi >= 0 && yVals[xi] == null)
        yVals[xi--] = null;
      xi = nullIdx + 1;
      while (xi < alignedLen && yVals[xi] == null)
        yVals[lastNullIdx = xi++] = null;
    }
  }
}
function join(tables2, nullModes) {
  if (allHeadersSame(tables2)) {
    let table = tables2[0].slice();
    for (let i4 = 1; i4 < tables2.length; i4++)
      table.push(...tables2[i4].slice(1));
    if (!isAsc(table[0]))
      table = sortCols(table);
    return table;
  }
  let xVals = /* @__PURE__ */ new Set();
  for (let ti = 0; ti < tables2.length; ti++) {
    let t3 = tables2[ti];
    let xs = t3[0];
    let len = xs.length;
    for (let i4 = 0; i4 < len; i4++)
      xVals.add(xs[i4]);
  }
  let data = [Array.from(xVals).sort((a3, b) => a3 - b)];
  let alignedLen = data[0].length;
  let xIdxs = /* @__PURE__ */ new Map();
  for (let i4 = 0; i4 < alignedLen; i4++)
    xIdxs.set(data[0][i4], i4);
  for (let ti = 0; ti < tables2.length; ti++) {
    let t3 = tables2[ti];
    let xs = t3[0];
    for (let si = 1; si < t3.length; si++) {
      let ys = t3[si];
      let yVals = Array(alignedLen).fill(void 0);
      let nullMode = nullModes ? nullModes[ti][si] : NULL_RETAIN;
      let nullIdxs = [];
      for (let i4 = 0; i4 < ys.length; i4++) {
        let yVal = ys[i4];
        let alignedIdx = xIdxs.get(xs[i4]);
        if (yVal === null) {
          if (nullMode != NULL_REMOVE) {
            yVals[alignedIdx] = yVal;
            if (nullMode == NULL_EXPAND)
              nullIdxs.push(alignedIdx);
          }
        } else
          yVals[alignedIdx] = yVal;
      }
      nullExpand(yVals, nullIdxs, alignedLen);
      data.push(yVals);
    }
  }
  return data;
}
var microTask = typeof queueMicrotask == "undefined" ? (fn) => Promise.resolve().then(fn) : queueMicrotask;
function sortCols(table) {
  let head = table[0];
  let rlen = head.length;
  let idxs = Array(rlen);
  for (let i4 = 0; i4 < idxs.length; i4++)
    idxs[i4] = i4;
  idxs.sort((i0, i1) => head[i0] - head[i1]);
  let table2 = [];
  for (let i4 = 0; i4 < table.length; i4++) {
    let row = table[i4];
    let row2 = Array(rlen);
    for (let j3 = 0; j3 < rlen; j3++)
      row2[j3] = row[idxs[j3]];
    table2.push(row2);
  }
  return table2;
}
function allHeadersSame(tables2) {
  let vals0 = tables2[0][0];
  let len0 = vals0.length;
  for (let i4 = 1; i4 < tables2.length; i4++) {
    let vals1 = tables2[i4][0];
    if (vals1.length != len0)
      return false;
    if (vals1 != vals0) {
      for (let j3 = 0; j3 < len0; j3++) {
        if (vals1[j3] != vals0[j3])
          return false;
      }
    }
  }
  return true;
}
function isAsc(vals, samples = 100) {
  const len = vals.length;
  if (len <= 1)
    return true;
  let firstIdx = 0;
  let lastIdx = len - 1;
  while (firstIdx <= lastIdx && vals[firstIdx] == null)
    firstIdx++;
  while (lastIdx >= firstIdx && vals[lastIdx] == null)
    lastIdx--;
  if (lastIdx <= firstIdx)
    return true;
  const stride = max(1, floor((lastIdx - firstIdx + 1) / samples));
  for (let prevVal = vals[firstIdx], i4 = firstIdx + stride; i4 <= lastIdx; i4 += stride) {
    const v3 = vals[i4];
    if (v3 != null) {
      if (v3 <= prevVal)
        return false;
      prevVal = v3;
    }
  }
  return true;
}
var months = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December"
];
var days = [
  "Sunday",
  "Monday",
  "Tuesday",
  "Wednesday",
  "Thursday",
  "Friday",
  "Saturday"
];
function slice3(str) {
  return str.slice(0, 3);
}
var days3 = days.map(slice3);
var months3 = months.map(slice3);
var engNames = {
  MMMM: months,
  MMM: months3,
  WWWW: days,
  WWW: days3
};
function zeroPad2(int) {
  return (int < 10 ? "0" : "") + int;
}
function zeroPad3(int) {
  return (int < 10 ? "00" : int < 100 ? "0" : "") + int;
}
var subs = {
  // 2019
  YYYY: (d3) => d3.getFullYear(),
  // 19
  YY: (d3) => (d3.getFullYear() + "").slice(2),
  // July
  MMMM: (d3, names) => names.MMMM[d3.getMonth()],
  // Jul
  MMM: (d3, names) => names.MMM[d3.getMonth()],
  // 07
  MM: (d3) => zeroPad2(d3.getMonth() + 1),
  // 7
  M: (d3) => d3.getMonth() + 1,
  // 09
  DD: (d3) => zeroPad2(d3.getDate()),
  // 9
  D: (d3) => d3.getDate(),
  // Monday
  WWWW: (d3, names) => names.WWWW[d3.getDay()],
  // Mon
  WWW: (d3, names) => names.WWW[d3.getDay()],
  // 03
  HH: (d3) => zeroPad2(d3.getHours()),
  // 3
  H: (d3) => d3.getHours(),
  // 9 (12hr, unpadded)
  h: (d3) => {
    let h3 = d3.getHours();
    return h3 == 0 ? 12 : h3 > 12 ? h3 - 12 : h3;
  },
  // AM
  AA: (d3) => d3.getHours() >= 12 ? "PM" : "AM",
  // am
  aa: (d3) => d3.getHours() >= 12 ? "pm" : "am",
  // a
  a: (d3) => d3.getHours() >= 12 ? "p" : "a",
  // 09
  mm: (d3) => zeroPad2(d3.getMinutes()),
  // 9
  m: (d3) => d3.getMinutes(),
  // 09
  ss: (d3) => zeroPad2(d3.getSeconds()),
  // 9
  s: (d3) => d3.getSeconds(),
  // 374
  fff: (d3) => zeroPad3(d3.getMilliseconds())
};
function fmtDate(tpl, names) {
  names = names || engNames;
  let parts = [];
  let R = /\{([a-z]+)\}|[^{]+/gi, m3;
  while (m3 = R.exec(tpl))
    parts.push(m3[0][0] == "{" ? subs[m3[1]] : m3[0]);
  return (d3) => {
    let out = "";
    for (let i4 = 0; i4 < parts.length; i4++)
      out += typeof parts[i4] == "string" ? parts[i4] : parts[i4](d3, names);
    return out;
  };
}
var localTz = new Intl.DateTimeFormat().resolvedOptions().timeZone;
function tzDate(date, tz) {
  let date2;
  if (tz == "UTC" || tz == "Etc/UTC")
    date2 = new Date(+date + date.getTimezoneOffset() * 6e4);
  else if (tz == localTz)
    date2 = date;
  else {
    date2 = new Date(date.toLocaleString("en-US", { timeZone: tz }));
    date2.setMilliseconds(date.getMilliseconds());
  }
  return date2;
}
var onlyWhole = (v3) => v3 % 1 == 0;
var allMults = [1, 2, 2.5, 5];
var decIncrs = genIncrs(10, -32, 0, allMults);
var oneIncrs = genIncrs(10, 0, 32, allMults);
var wholeIncrs = oneIncrs.filter(onlyWhole);
var numIncrs = decIncrs.concat(oneIncrs);
var NL = "\n";
var yyyy = "{YYYY}";
var NLyyyy = NL + yyyy;
var md = "{M}/{D}";
var NLmd = NL + md;
var NLmdyy = NLmd + "/{YY}";
var aa = "{aa}";
var hmm = "{h}:{mm}";
var hmmaa = hmm + aa;
var NLhmmaa = NL + hmmaa;
var ss = ":{ss}";
var _3 = null;
function genTimeStuffs(ms) {
  let s3 = ms * 1e3, m3 = s3 * 60, h3 = m3 * 60, d3 = h3 * 24, mo = d3 * 30, y3 = d3 * 365;
  let subSecIncrs = ms == 1 ? genIncrs(10, 0, 3, allMults).filter(onlyWhole) : genIncrs(10, -3, 0, allMults);
  let timeIncrs = subSecIncrs.concat([
    // minute divisors (# of secs)
    s3,
    s3 * 5,
    s3 * 10,
    s3 * 15,
    s3 * 30,
    // hour divisors (# of mins)
    m3,
    m3 * 5,
    m3 * 10,
    m3 * 15,
    m3 * 30,
    // day divisors (# of hrs)
    h3,
    h3 * 2,
    h3 * 3,
    h3 * 4,
    h3 * 6,
    h3 * 8,
    h3 * 12,
    // month divisors TODO: need more?
    d3,
    d3 * 2,
    d3 * 3,
    d3 * 4,
    d3 * 5,
    d3 * 6,
    d3 * 7,
    d3 * 8,
    d3 * 9,
    d3 * 10,
    d3 * 15,
    // year divisors (# months, approx)
    mo,
    mo * 2,
    mo * 3,
    mo * 4,
    mo * 6,
    // century divisors
    y3,
    y3 * 2,
    y3 * 5,
    y3 * 10,
    y3 * 25,
    y3 * 50,
    y3 * 100
  ]);
  const _timeAxisStamps = [
    //   tick incr    default          year                    month   day                   hour    min       sec   mode
    [y3, yyyy, _3, _3, _3, _3, _3, _3, 1],
    [d3 * 28, "{MMM}", NLyyyy, _3, _3, _3, _3, _3, 1],
    [d3, md, NLyyyy, _3, _3, _3, _3, _3, 1],
    [h3, "{h}" + aa, NLmdyy, _3, NLmd, _3, _3, _3, 1],
    [m3, hmmaa, NLmdyy, _3, NLmd, _3, _3, _3, 1],
    [s3, ss, NLmdyy + " " + hmmaa, _3, NLmd + " " + hmmaa, _3, NLhmmaa, _3, 1],
    [ms, ss + ".{fff}", NLmdyy + " " + hmmaa, _3, NLmd + " " + hmmaa, _3, NLhmmaa, _3, 1]
  ];
  function timeAxisSplits(tzDate2) {
    return (self, axisIdx, scaleMin, scaleMax, foundIncr, foundSpace) => {
      let splits = [];
      let isYr = foundIncr >= y3;
      let isMo = foundIncr >= mo && foundIncr < y3;
      let minDate = tzDate2(scaleMin);
      let minDateTs = roundDec(minDate * ms, 3);
      let minMin = mkDate(minDate.getFullYear(), isYr ? 0 : minDate.getMonth(), isMo || isYr ? 1 : minDate.getDate());
      let minMinTs = roundDec(minMin * ms, 3);
      if (isMo || isYr) {
        let moIncr = isMo ? foundIncr / mo : 0;
        let yrIncr = isYr ? foundIncr / y3 : 0;
        let split2 = minDateTs == minMinTs ? minDateTs : roundDec(mkDate(minMin.getFullYear() + yrIncr, minMin.getMonth() + moIncr, 1) * ms, 3);
        let splitDate = new Date(round2(split2 / ms));
        let baseYear = splitDate.getFullYear();
        let baseMonth = splitDate.getMonth();
        for (let i4 = 0; split2 <= scaleMax; i4++) {
          let next = mkDate(baseYear + yrIncr * i4, baseMonth + moIncr * i4, 1);
          let offs = next - tzDate2(roundDec(next * ms, 3));
          split2 = roundDec((+next + offs) * ms, 3);
          if (split2 <= scaleMax)
            splits.push(split2);
        }
      } else {
        let incr0 = foundIncr >= d3 ? d3 : foundIncr;
        let tzOffset = floor(scaleMin) - floor(minDateTs);
        let split2 = minMinTs + tzOffset + incrRoundUp(minDateTs - minMinTs, incr0);
        splits.push(split2);
        let date0 = tzDate2(split2);
        let prevHour = date0.getHours() + date0.getMinutes() / m3 + date0.getSeconds() / h3;
        let incrHours = foundIncr / h3;
        let minSpace = self.axes[axisIdx]._space;
        let pctSpace = foundSpace / minSpace;
        while (1) {
          split2 = roundDec(split2 + foundIncr, ms == 1 ? 0 : 3);
          if (split2 > scaleMax)
            break;
          if (incrHours > 1) {
            let expectedHour = floor(roundDec(prevHour + incrHours, 6)) % 24;
            let splitDate = tzDate2(split2);
            let actualHour = splitDate.getHours();
            let dstShift = actualHour - expectedHour;
            if (dstShift > 1)
              dstShift = -1;
            split2 -= dstShift * h3;
            prevHour = (prevHour + incrHours) % 24;
            let prevSplit = splits[splits.length - 1];
            let pctIncr = roundDec((split2 - prevSplit) / foundIncr, 3);
            if (pctIncr * pctSpace >= 0.7)
              splits.push(split2);
          } else
            splits.push(split2);
        }
      }
      return splits;
    };
  }
  return [
    timeIncrs,
    _timeAxisStamps,
    timeAxisSplits
  ];
}
var [timeIncrsMs, _timeAxisStampsMs, timeAxisSplitsMs] = genTimeStuffs(1);
var [timeIncrsS, _timeAxisStampsS, timeAxisSplitsS] = genTimeStuffs(1e-3);
genIncrs(2, -53, 53, [1]);
function timeAxisStamps(stampCfg, fmtDate2) {
  return stampCfg.map((s3) => s3.map(
    (v3, i4) => i4 == 0 || i4 == 8 || v3 == null ? v3 : fmtDate2(i4 == 1 || s3[8] == 0 ? v3 : s3[1] + v3)
  ));
}
function timeAxisVals(tzDate2, stamps) {
  return (self, splits, axisIdx, foundSpace, foundIncr) => {
    let s3 = stamps.find((s4) => foundIncr >= s4[0]) || stamps[stamps.length - 1];
    let prevYear;
    let prevMnth;
    let prevDate;
    let prevHour;
    let prevMins;
    let prevSecs;
    return splits.map((split2) => {
      let date = tzDate2(split2);
      let newYear = date.getFullYear();
      let newMnth = date.getMonth();
      let newDate = date.getDate();
      let newHour = date.getHours();
      let newMins = date.getMinutes();
      let newSecs = date.getSeconds();
      let stamp = newYear != prevYear && s3[2] || newMnth != prevMnth && s3[3] || newDate != prevDate && s3[4] || newHour != prevHour && s3[5] || newMins != prevMins && s3[6] || newSecs != prevSecs && s3[7] || s3[1];
      prevYear = newYear;
      prevMnth = newMnth;
      prevDate = newDate;
      prevHour = newHour;
      prevMins = newMins;
      prevSecs = newSecs;
      return stamp(date);
    });
  };
}
function timeAxisVal(tzDate2, dateTpl) {
  let stamp = fmtDate(dateTpl);
  return (self, splits, axisIdx, foundSpace, foundIncr) => splits.map((split2) => stamp(tzDate2(split2)));
}
function mkDate(y3, m3, d3) {
  return new Date(y3, m3, d3);
}
function timeSeriesStamp(stampCfg, fmtDate2) {
  return fmtDate2(stampCfg);
}
var _timeSeriesStamp = "{YYYY}-{MM}-{DD} {h}:{mm}{aa}";
function timeSeriesVal(tzDate2, stamp) {
  return (self, val, seriesIdx, dataIdx) => dataIdx == null ? LEGEND_DISP : stamp(tzDate2(val));
}
function legendStroke(self, seriesIdx) {
  let s3 = self.series[seriesIdx];
  return s3.width ? s3.stroke(self, seriesIdx) : s3.points.width ? s3.points.stroke(self, seriesIdx) : null;
}
function legendFill(self, seriesIdx) {
  return self.series[seriesIdx].fill(self, seriesIdx);
}
var legendOpts = {
  show: true,
  live: true,
  isolate: false,
  mount: noop,
  markers: {
    show: true,
    width: 2,
    stroke: legendStroke,
    fill: legendFill,
    dash: "solid"
  },
  idx: null,
  idxs: null,
  values: []
};
function cursorPointShow(self, si) {
  let o3 = self.cursor.points;
  let pt = placeDiv();
  let size = o3.size(self, si);
  setStylePx(pt, WIDTH, size);
  setStylePx(pt, HEIGHT, size);
  let mar = size / -2;
  setStylePx(pt, "marginLeft", mar);
  setStylePx(pt, "marginTop", mar);
  let width = o3.width(self, si, size);
  width && setStylePx(pt, "borderWidth", width);
  return pt;
}
function cursorPointFill(self, si) {
  let sp = self.series[si].points;
  return sp._fill || sp._stroke;
}
function cursorPointStroke(self, si) {
  let sp = self.series[si].points;
  return sp._stroke || sp._fill;
}
function cursorPointSize(self, si) {
  let sp = self.series[si].points;
  return sp.size;
}
var moveTuple = [0, 0];
function cursorMove(self, mouseLeft1, mouseTop1) {
  moveTuple[0] = mouseLeft1;
  moveTuple[1] = mouseTop1;
  return moveTuple;
}
function filtBtn0(self, targ, handle, onlyTarg = true) {
  return (e3) => {
    e3.button == 0 && (!onlyTarg || e3.target == targ) && handle(e3);
  };
}
function filtTarg(self, targ, handle, onlyTarg = true) {
  return (e3) => {
    (!onlyTarg || e3.target == targ) && handle(e3);
  };
}
var cursorOpts = {
  show: true,
  x: true,
  y: true,
  lock: false,
  move: cursorMove,
  points: {
    one: false,
    show: cursorPointShow,
    size: cursorPointSize,
    width: 0,
    stroke: cursorPointStroke,
    fill: cursorPointFill
  },
  bind: {
    mousedown: filtBtn0,
    mouseup: filtBtn0,
    click: filtBtn0,
    // legend clicks, not .u-over clicks
    dblclick: filtBtn0,
    mousemove: filtTarg,
    mouseleave: filtTarg,
    mouseenter: filtTarg
  },
  drag: {
    setScale: true,
    x: true,
    y: false,
    dist: 0,
    uni: null,
    click: (self, e3) => {
      e3.stopPropagation();
      e3.stopImmediatePropagation();
    },
    _x: false,
    _y: false
  },
  focus: {
    dist: (self, seriesIdx, dataIdx, valPos, curPos) => valPos - curPos,
    prox: -1,
    bias: 0
  },
  hover: {
    skip: [void 0],
    prox: null,
    bias: 0
  },
  left: -10,
  top: -10,
  idx: null,
  dataIdx: null,
  idxs: null,
  event: null
};
var axisLines = {
  show: true,
  stroke: "rgba(0,0,0,0.07)",
  width: 2
  //	dash: [],
};
var grid = assign({}, axisLines, {
  filter: retArg1
});
var ticks = assign({}, grid, {
  size: 10
});
var border = assign({}, axisLines, {
  show: false
});
var font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Noto Sans", sans-serif, "Apple Color Emoji", "Segoe UI Emoji", "Segoe UI Symbol", "Noto Color Emoji"';
var labelFont = "bold " + font;
var lineGap = 1.5;
var xAxisOpts = {
  show: true,
  scale: "x",
  stroke: hexBlack,
  space: 50,
  gap: 5,
  alignTo: 1,
  size: 50,
  labelGap: 0,
  labelSize: 30,
  labelFont,
  side: 2,
  //	class: "x-vals",
  //	incrs: timeIncrs,
  //	values: timeVals,
  //	filter: retArg1,
  grid,
  ticks,
  border,
  font,
  lineGap,
  rotate: 0
};
var numSeriesLabel = "Value";
var timeSeriesLabel = "Time";
var xSeriesOpts = {
  show: true,
  scale: "x",
  auto: false,
  sorted: 1,
  //	label: "Time",
  //	value: v => stamp(new Date(v * 1e3)),
  // internal caches
  min: inf,
  max: -inf,
  idxs: []
};
function numAxisVals(self, splits, axisIdx, foundSpace, foundIncr) {
  return splits.map((v3) => v3 == null ? "" : fmtNum(v3));
}
function numAxisSplits(self, axisIdx, scaleMin, scaleMax, foundIncr, foundSpace, forceMin) {
  let splits = [];
  let numDec = fixedDec.get(foundIncr) || 0;
  scaleMin = forceMin ? scaleMin : roundDec(incrRoundUp(scaleMin, foundIncr), numDec);
  for (let val = scaleMin; val <= scaleMax; val = roundDec(val + foundIncr, numDec))
    splits.push(Object.is(val, -0) ? 0 : val);
  return splits;
}
function logAxisSplits(self, axisIdx, scaleMin, scaleMax, foundIncr, foundSpace, forceMin) {
  const splits = [];
  const logBase = self.scales[self.axes[axisIdx].scale].log;
  const logFn = logBase == 10 ? log10 : log2;
  const exp = floor(logFn(scaleMin));
  foundIncr = pow(logBase, exp);
  if (logBase == 10)
    foundIncr = numIncrs[closestIdx(foundIncr, numIncrs)];
  let split2 = scaleMin;
  let nextMagIncr = foundIncr * logBase;
  if (logBase == 10)
    nextMagIncr = numIncrs[closestIdx(nextMagIncr, numIncrs)];
  do {
    splits.push(split2);
    split2 = split2 + foundIncr;
    if (logBase == 10 && !fixedDec.has(split2))
      split2 = roundDec(split2, fixedDec.get(foundIncr));
    if (split2 >= nextMagIncr) {
      foundIncr = split2;
      nextMagIncr = foundIncr * logBase;
      if (logBase == 10)
        nextMagIncr = numIncrs[closestIdx(nextMagIncr, numIncrs)];
    }
  } while (split2 <= scaleMax);
  return splits;
}
function asinhAxisSplits(self, axisIdx, scaleMin, scaleMax, foundIncr, foundSpace, forceMin) {
  let sc = self.scales[self.axes[axisIdx].scale];
  let linthresh = sc.asinh;
  let posSplits = scaleMax > linthresh ? logAxisSplits(self, axisIdx, max(linthresh, scaleMin), scaleMax, foundIncr) : [linthresh];
  let zero = scaleMax >= 0 && scaleMin <= 0 ? [0] : [];
  let negSplits = scaleMin < -linthresh ? logAxisSplits(self, axisIdx, max(linthresh, -scaleMax), -scaleMin, foundIncr) : [linthresh];
  return negSplits.reverse().map((v3) => -v3).concat(zero, posSplits);
}
var RE_ALL = /./;
var RE_12357 = /[12357]/;
var RE_125 = /[125]/;
var RE_1 = /1/;
var _filt = (splits, distr, re, keepMod) => splits.map((v3, i4) => distr == 4 && v3 == 0 || i4 % keepMod == 0 && re.test(v3.toExponential()[v3 < 0 ? 1 : 0]) ? v3 : null);
function log10AxisValsFilt(self, splits, axisIdx, foundSpace, foundIncr) {
  let axis = self.axes[axisIdx];
  let scaleKey = axis.scale;
  let sc = self.scales[scaleKey];
  let valToPos = self.valToPos;
  let minSpace = axis._space;
  let _10 = valToPos(10, scaleKey);
  let re = valToPos(9, scaleKey) - _10 >= minSpace ? RE_ALL : valToPos(7, scaleKey) - _10 >= minSpace ? RE_12357 : valToPos(5, scaleKey) - _10 >= minSpace ? RE_125 : RE_1;
  if (re == RE_1) {
    let magSpace = abs(valToPos(1, scaleKey) - _10);
    if (magSpace < minSpace)
      return _filt(splits.slice().reverse(), sc.distr, re, ceil(minSpace / magSpace)).reverse();
  }
  return _filt(splits, sc.distr, re, 1);
}
function log2AxisValsFilt(self, splits, axisIdx, foundSpace, foundIncr) {
  let axis = self.axes[axisIdx];
  let scaleKey = axis.scale;
  let minSpace = axis._space;
  let valToPos = self.valToPos;
  let magSpace = abs(valToPos(1, scaleKey) - valToPos(2, scaleKey));
  if (magSpace < minSpace)
    return _filt(splits.slice().reverse(), 3, RE_ALL, ceil(minSpace / magSpace)).reverse();
  return splits;
}
function numSeriesVal(self, val, seriesIdx, dataIdx) {
  return dataIdx == null ? LEGEND_DISP : val == null ? "" : fmtNum(val);
}
var yAxisOpts = {
  show: true,
  scale: "y",
  stroke: hexBlack,
  space: 30,
  gap: 5,
  alignTo: 1,
  size: 50,
  labelGap: 0,
  labelSize: 30,
  labelFont,
  side: 3,
  //	class: "y-vals",
  //	incrs: numIncrs,
  //	values: (vals, space) => vals,
  //	filter: retArg1,
  grid,
  ticks,
  border,
  font,
  lineGap,
  rotate: 0
};
function ptDia(width, mult) {
  let dia = 3 + (width || 1) * 2;
  return roundDec(dia * mult, 3);
}
function seriesPointsShow(self, si) {
  let { scale, idxs } = self.series[0];
  let xData = self._data[0];
  let p0 = self.valToPos(xData[idxs[0]], scale, true);
  let p1 = self.valToPos(xData[idxs[1]], scale, true);
  let dim = abs(p1 - p0);
  let s3 = self.series[si];
  let maxPts = dim / (s3.points.space * pxRatio);
  return idxs[1] - idxs[0] <= maxPts;
}
var facet = {
  scale: null,
  auto: true,
  sorted: 0,
  // internal caches
  min: inf,
  max: -inf
};
var gaps = (self, seriesIdx, idx0, idx1, nullGaps) => nullGaps;
var xySeriesOpts = {
  show: true,
  auto: true,
  sorted: 0,
  gaps,
  alpha: 1,
  facets: [
    assign({}, facet, { scale: "x" }),
    assign({}, facet, { scale: "y" })
  ]
};
var ySeriesOpts = {
  scale: "y",
  auto: true,
  sorted: 0,
  show: true,
  spanGaps: false,
  gaps,
  alpha: 1,
  points: {
    show: seriesPointsShow,
    filter: null
    //  paths:
    //	stroke: "#000",
    //	fill: "#fff",
    //	width: 1,
    //	size: 10,
  },
  //	label: "Value",
  //	value: v => v,
  values: null,
  // internal caches
  min: inf,
  max: -inf,
  idxs: [],
  path: null,
  clip: null
};
function clampScale(self, val, scaleMin, scaleMax, scaleKey) {
  return scaleMin / 10;
}
var xScaleOpts = {
  time: FEAT_TIME,
  auto: true,
  distr: 1,
  log: 10,
  asinh: 1,
  min: null,
  max: null,
  dir: 1,
  ori: 0
};
var yScaleOpts = assign({}, xScaleOpts, {
  time: false,
  ori: 1
});
var syncs = {};
function _sync(key, opts) {
  let s3 = syncs[key];
  if (!s3) {
    s3 = {
      key,
      plots: [],
      sub(plot) {
        s3.plots.push(plot);
      },
      unsub(plot) {
        s3.plots = s3.plots.filter((c3) => c3 != plot);
      },
      pub(type, self, x2, y3, w3, h3, i4) {
        for (let j3 = 0; j3 < s3.plots.length; j3++)
          s3.plots[j3] != self && s3.plots[j3].pub(type, self, x2, y3, w3, h3, i4);
      }
    };
    if (key != null)
      syncs[key] = s3;
  }
  return s3;
}
var BAND_CLIP_FILL = 1 << 0;
var BAND_CLIP_STROKE = 1 << 1;
function orient(u4, seriesIdx, cb) {
  const mode = u4.mode;
  const series = u4.series[seriesIdx];
  const data = mode == 2 ? u4._data[seriesIdx] : u4._data;
  const scales = u4.scales;
  const bbox = u4.bbox;
  let dx = data[0], dy = mode == 2 ? data[1] : data[seriesIdx], sx = mode == 2 ? scales[series.facets[0].scale] : scales[u4.series[0].scale], sy = mode == 2 ? scales[series.facets[1].scale] : scales[series.scale], l3 = bbox.left, t3 = bbox.top, w3 = bbox.width, h3 = bbox.height, H = u4.valToPosH, V2 = u4.valToPosV;
  return sx.ori == 0 ? cb(
    series,
    dx,
    dy,
    sx,
    sy,
    H,
    V2,
    l3,
    t3,
    w3,
    h3,
    moveToH,
    lineToH,
    rectH,
    arcH,
    bezierCurveToH
  ) : cb(
    series,
    dx,
    dy,
    sx,
    sy,
    V2,
    H,
    t3,
    l3,
    h3,
    w3,
    moveToV,
    lineToV,
    rectV,
    arcV,
    bezierCurveToV
  );
}
function bandFillClipDirs(self, seriesIdx) {
  let fillDir = 0;
  let clipDirs = 0;
  let bands = ifNull(self.bands, EMPTY_ARR);
  for (let i4 = 0; i4 < bands.length; i4++) {
    let b = bands[i4];
    if (b.series[0] == seriesIdx)
      fillDir = b.dir;
    else if (b.series[1] == seriesIdx) {
      if (b.dir == 1)
        clipDirs |= 1;
      else
        clipDirs |= 2;
    }
  }
  return [
    fillDir,
    clipDirs == 1 ? -1 : (
      // neg only
      clipDirs == 2 ? 1 : (
        // pos only
        clipDirs == 3 ? 2 : (
          // both
          0
        )
      )
    )
  ];
}
function seriesFillTo(self, seriesIdx, dataMin, dataMax, bandFillDir) {
  let mode = self.mode;
  let series = self.series[seriesIdx];
  let scaleKey = mode == 2 ? series.facets[1].scale : series.scale;
  let scale = self.scales[scaleKey];
  return bandFillDir == -1 ? scale.min : bandFillDir == 1 ? scale.max : scale.distr == 3 ? scale.dir == 1 ? scale.min : scale.max : 0;
}
function clipBandLine(self, seriesIdx, idx0, idx1, strokePath, clipDir) {
  return orient(self, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
    let pxRound = series.pxRound;
    const dir = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
    const lineTo = scaleX.ori == 0 ? lineToH : lineToV;
    let frIdx, toIdx;
    if (dir == 1) {
      frIdx = idx0;
      toIdx = idx1;
    } else {
      frIdx = idx1;
      toIdx = idx0;
    }
    let x0 = pxRound(valToPosX(dataX[frIdx], scaleX, xDim, xOff));
    let y0 = pxRound(valToPosY(dataY[frIdx], scaleY, yDim, yOff));
    let x1 = pxRound(valToPosX(dataX[toIdx], scaleX, xDim, xOff));
    let yLimit = pxRound(valToPosY(clipDir == 1 ? scaleY.max : scaleY.min, scaleY, yDim, yOff));
    let clip = new Path2D(strokePath);
    lineTo(clip, x1, yLimit);
    lineTo(clip, x0, yLimit);
    lineTo(clip, x0, y0);
    return clip;
  });
}
function clipGaps(gaps2, ori, plotLft, plotTop, plotWid, plotHgt) {
  let clip = null;
  if (gaps2.length > 0) {
    clip = new Path2D();
    const rect2 = ori == 0 ? rectH : rectV;
    let prevGapEnd = plotLft;
    for (let i4 = 0; i4 < gaps2.length; i4++) {
      let g2 = gaps2[i4];
      if (g2[1] > g2[0]) {
        let w4 = g2[0] - prevGapEnd;
        w4 > 0 && rect2(clip, prevGapEnd, plotTop, w4, plotTop + plotHgt);
        prevGapEnd = g2[1];
      }
    }
    let w3 = plotLft + plotWid - prevGapEnd;
    let maxStrokeWidth = 10;
    w3 > 0 && rect2(clip, prevGapEnd, plotTop - maxStrokeWidth / 2, w3, plotTop + plotHgt + maxStrokeWidth);
  }
  return clip;
}
function addGap(gaps2, fromX, toX) {
  let prevGap = gaps2[gaps2.length - 1];
  if (prevGap && prevGap[0] == fromX)
    prevGap[1] = toX;
  else
    gaps2.push([fromX, toX]);
}
function findGaps(xs, ys, idx0, idx1, dir, pixelForX, align) {
  let gaps2 = [];
  let len = xs.length;
  for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
    let yVal = ys[i4];
    if (yVal === null) {
      let fr = i4, to = i4;
      if (dir == 1) {
        while (++i4 <= idx1 && ys[i4] === null)
          to = i4;
      } else {
        while (--i4 >= idx0 && ys[i4] === null)
          to = i4;
      }
      let frPx = pixelForX(xs[fr]);
      let toPx = to == fr ? frPx : pixelForX(xs[to]);
      let fri2 = fr - dir;
      let frPx2 = align <= 0 && fri2 >= 0 && fri2 < len ? pixelForX(xs[fri2]) : frPx;
      frPx = frPx2;
      let toi2 = to + dir;
      let toPx2 = align >= 0 && toi2 >= 0 && toi2 < len ? pixelForX(xs[toi2]) : toPx;
      toPx = toPx2;
      if (toPx >= frPx)
        gaps2.push([frPx, toPx]);
    }
  }
  return gaps2;
}
function pxRoundGen(pxAlign) {
  return pxAlign == 0 ? retArg0 : pxAlign == 1 ? round2 : (v3) => incrRound(v3, pxAlign);
}
function rect(ori) {
  let moveTo = ori == 0 ? moveToH : moveToV;
  let arcTo = ori == 0 ? (p3, x1, y1, x2, y22, r3) => {
    p3.arcTo(x1, y1, x2, y22, r3);
  } : (p3, y1, x1, y22, x2, r3) => {
    p3.arcTo(x1, y1, x2, y22, r3);
  };
  let rect2 = ori == 0 ? (p3, x2, y3, w3, h3) => {
    p3.rect(x2, y3, w3, h3);
  } : (p3, y3, x2, h3, w3) => {
    p3.rect(x2, y3, w3, h3);
  };
  return (p3, x2, y3, w3, h3, endRad = 0, baseRad = 0) => {
    if (endRad == 0 && baseRad == 0)
      rect2(p3, x2, y3, w3, h3);
    else {
      endRad = min(endRad, w3 / 2, h3 / 2);
      baseRad = min(baseRad, w3 / 2, h3 / 2);
      moveTo(p3, x2 + endRad, y3);
      arcTo(p3, x2 + w3, y3, x2 + w3, y3 + h3, endRad);
      arcTo(p3, x2 + w3, y3 + h3, x2, y3 + h3, baseRad);
      arcTo(p3, x2, y3 + h3, x2, y3, baseRad);
      arcTo(p3, x2, y3, x2 + w3, y3, endRad);
      p3.closePath();
    }
  };
}
var moveToH = (p3, x2, y3) => {
  p3.moveTo(x2, y3);
};
var moveToV = (p3, y3, x2) => {
  p3.moveTo(x2, y3);
};
var lineToH = (p3, x2, y3) => {
  p3.lineTo(x2, y3);
};
var lineToV = (p3, y3, x2) => {
  p3.lineTo(x2, y3);
};
var rectH = rect(0);
var rectV = rect(1);
var arcH = (p3, x2, y3, r3, startAngle, endAngle) => {
  p3.arc(x2, y3, r3, startAngle, endAngle);
};
var arcV = (p3, y3, x2, r3, startAngle, endAngle) => {
  p3.arc(x2, y3, r3, startAngle, endAngle);
};
var bezierCurveToH = (p3, bp1x, bp1y, bp2x, bp2y, p2x, p2y) => {
  p3.bezierCurveTo(bp1x, bp1y, bp2x, bp2y, p2x, p2y);
};
var bezierCurveToV = (p3, bp1y, bp1x, bp2y, bp2x, p2y, p2x) => {
  p3.bezierCurveTo(bp1x, bp1y, bp2x, bp2y, p2x, p2y);
};
function points2(opts) {
  return (u4, seriesIdx, idx0, idx1, filtIdxs) => {
    return orient(u4, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      let { pxRound, points: points3 } = series;
      let moveTo, arc;
      if (scaleX.ori == 0) {
        moveTo = moveToH;
        arc = arcH;
      } else {
        moveTo = moveToV;
        arc = arcV;
      }
      const width = roundDec(points3.width * pxRatio, 3);
      let rad = (points3.size - points3.width) / 2 * pxRatio;
      let dia = roundDec(rad * 2, 3);
      let fill3 = new Path2D();
      let clip = new Path2D();
      let { left: lft, top, width: wid, height: hgt } = u4.bbox;
      rectH(
        clip,
        lft - dia,
        top - dia,
        wid + dia * 2,
        hgt + dia * 2
      );
      const drawPoint = (pi) => {
        if (dataY[pi] != null) {
          let x2 = pxRound(valToPosX(dataX[pi], scaleX, xDim, xOff));
          let y3 = pxRound(valToPosY(dataY[pi], scaleY, yDim, yOff));
          moveTo(fill3, x2 + rad, y3);
          arc(fill3, x2, y3, rad, 0, PI * 2);
        }
      };
      if (filtIdxs)
        filtIdxs.forEach(drawPoint);
      else {
        for (let pi = idx0; pi <= idx1; pi++)
          drawPoint(pi);
      }
      return {
        stroke: width > 0 ? fill3 : null,
        fill: fill3,
        clip,
        flags: BAND_CLIP_FILL | BAND_CLIP_STROKE
      };
    });
  };
}
function _drawAcc(lineTo) {
  return (stroke, accX, minY, maxY, inY, outY) => {
    if (minY != maxY) {
      if (inY != minY && outY != minY)
        lineTo(stroke, accX, minY);
      if (inY != maxY && outY != maxY)
        lineTo(stroke, accX, maxY);
      lineTo(stroke, accX, outY);
    }
  };
}
var drawAccH = _drawAcc(lineToH);
var drawAccV = _drawAcc(lineToV);
function linear(opts) {
  const alignGaps = ifNull(opts?.alignGaps, 0);
  return (u4, seriesIdx, idx0, idx1) => {
    return orient(u4, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      [idx0, idx1] = nonNullIdxs(dataY, idx0, idx1);
      let pxRound = series.pxRound;
      let pixelForX = (val) => pxRound(valToPosX(val, scaleX, xDim, xOff));
      let pixelForY = (val) => pxRound(valToPosY(val, scaleY, yDim, yOff));
      let lineTo, drawAcc;
      if (scaleX.ori == 0) {
        lineTo = lineToH;
        drawAcc = drawAccH;
      } else {
        lineTo = lineToV;
        drawAcc = drawAccV;
      }
      const dir = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
      const _paths = { stroke: new Path2D(), fill: null, clip: null, band: null, gaps: null, flags: BAND_CLIP_FILL };
      const stroke = _paths.stroke;
      let hasGap = false;
      const decimate = idx1 - idx0 >= xDim * 4;
      if (decimate) {
        let xForPixel = (pos) => u4.posToVal(pos, scaleX.key, true);
        let minY = null, maxY = null, inY, outY, drawnAtX;
        let accX = pixelForX(dataX[dir == 1 ? idx0 : idx1]);
        let idx0px = pixelForX(dataX[idx0]);
        let idx1px = pixelForX(dataX[idx1]);
        let nextAccXVal = xForPixel(dir == 1 ? idx0px + 1 : idx1px - 1);
        for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
          let xVal = dataX[i4];
          let reuseAccX = dir == 1 ? xVal < nextAccXVal : xVal > nextAccXVal;
          let x2 = reuseAccX ? accX : pixelForX(xVal);
          let yVal = dataY[i4];
          if (x2 == accX) {
            if (yVal != null) {
              outY = yVal;
              if (minY == null) {
                lineTo(stroke, x2, pixelForY(outY));
                inY = minY = maxY = outY;
              } else {
                if (outY < minY)
                  minY = outY;
                else if (outY > maxY)
                  maxY = outY;
              }
            } else {
              if (yVal === null)
                hasGap = true;
            }
          } else {
            if (minY != null)
              drawAcc(stroke, accX, pixelForY(minY), pixelForY(maxY), pixelForY(inY), pixelForY(outY));
            if (yVal != null) {
              outY = yVal;
              lineTo(stroke, x2, pixelForY(outY));
              minY = maxY = inY = outY;
            } else {
              minY = maxY = null;
              if (yVal === null)
                hasGap = true;
            }
            accX = x2;
            nextAccXVal = xForPixel(accX + dir);
          }
        }
        if (minY != null && minY != maxY && drawnAtX != accX)
          drawAcc(stroke, accX, pixelForY(minY), pixelForY(maxY), pixelForY(inY), pixelForY(outY));
      } else {
        for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
          let yVal = dataY[i4];
          if (yVal === null)
            hasGap = true;
          else if (yVal != null)
            lineTo(stroke, pixelForX(dataX[i4]), pixelForY(yVal));
        }
      }
      let [bandFillDir, bandClipDir] = bandFillClipDirs(u4, seriesIdx);
      if (series.fill != null || bandFillDir != 0) {
        let fill3 = _paths.fill = new Path2D(stroke);
        let fillToVal = series.fillTo(u4, seriesIdx, series.min, series.max, bandFillDir);
        let fillToY = pixelForY(fillToVal);
        let frX = pixelForX(dataX[idx0]);
        let toX = pixelForX(dataX[idx1]);
        if (dir == -1)
          [toX, frX] = [frX, toX];
        lineTo(fill3, toX, fillToY);
        lineTo(fill3, frX, fillToY);
      }
      if (!series.spanGaps) {
        let gaps2 = [];
        hasGap && gaps2.push(...findGaps(dataX, dataY, idx0, idx1, dir, pixelForX, alignGaps));
        _paths.gaps = gaps2 = series.gaps(u4, seriesIdx, idx0, idx1, gaps2);
        _paths.clip = clipGaps(gaps2, scaleX.ori, xOff, yOff, xDim, yDim);
      }
      if (bandClipDir != 0) {
        _paths.band = bandClipDir == 2 ? [
          clipBandLine(u4, seriesIdx, idx0, idx1, stroke, -1),
          clipBandLine(u4, seriesIdx, idx0, idx1, stroke, 1)
        ] : clipBandLine(u4, seriesIdx, idx0, idx1, stroke, bandClipDir);
      }
      return _paths;
    });
  };
}
function stepped(opts) {
  const align = ifNull(opts.align, 1);
  const ascDesc = ifNull(opts.ascDesc, false);
  const alignGaps = ifNull(opts.alignGaps, 0);
  const extend = ifNull(opts.extend, false);
  return (u4, seriesIdx, idx0, idx1) => {
    return orient(u4, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      [idx0, idx1] = nonNullIdxs(dataY, idx0, idx1);
      let pxRound = series.pxRound;
      let { left, width } = u4.bbox;
      let pixelForX = (val) => pxRound(valToPosX(val, scaleX, xDim, xOff));
      let pixelForY = (val) => pxRound(valToPosY(val, scaleY, yDim, yOff));
      let lineTo = scaleX.ori == 0 ? lineToH : lineToV;
      const _paths = { stroke: new Path2D(), fill: null, clip: null, band: null, gaps: null, flags: BAND_CLIP_FILL };
      const stroke = _paths.stroke;
      const dir = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
      let prevYPos = pixelForY(dataY[dir == 1 ? idx0 : idx1]);
      let firstXPos = pixelForX(dataX[dir == 1 ? idx0 : idx1]);
      let prevXPos = firstXPos;
      let firstXPosExt = firstXPos;
      if (extend && align == -1) {
        firstXPosExt = left;
        lineTo(stroke, firstXPosExt, prevYPos);
      }
      lineTo(stroke, firstXPos, prevYPos);
      for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
        let yVal1 = dataY[i4];
        if (yVal1 == null)
          continue;
        let x1 = pixelForX(dataX[i4]);
        let y1 = pixelForY(yVal1);
        if (align == 1)
          lineTo(stroke, x1, prevYPos);
        else
          lineTo(stroke, prevXPos, y1);
        lineTo(stroke, x1, y1);
        prevYPos = y1;
        prevXPos = x1;
      }
      let prevXPosExt = prevXPos;
      if (extend && align == 1) {
        prevXPosExt = left + width;
        lineTo(stroke, prevXPosExt, prevYPos);
      }
      let [bandFillDir, bandClipDir] = bandFillClipDirs(u4, seriesIdx);
      if (series.fill != null || bandFillDir != 0) {
        let fill3 = _paths.fill = new Path2D(stroke);
        let fillTo = series.fillTo(u4, seriesIdx, series.min, series.max, bandFillDir);
        let fillToY = pixelForY(fillTo);
        lineTo(fill3, prevXPosExt, fillToY);
        lineTo(fill3, firstXPosExt, fillToY);
      }
      if (!series.spanGaps) {
        let gaps2 = [];
        gaps2.push(...findGaps(dataX, dataY, idx0, idx1, dir, pixelForX, alignGaps));
        let halfStroke = series.width * pxRatio / 2;
        let startsOffset = ascDesc || align == 1 ? halfStroke : -halfStroke;
        let endsOffset = ascDesc || align == -1 ? -halfStroke : halfStroke;
        gaps2.forEach((g2) => {
          g2[0] += startsOffset;
          g2[1] += endsOffset;
        });
        _paths.gaps = gaps2 = series.gaps(u4, seriesIdx, idx0, idx1, gaps2);
        _paths.clip = clipGaps(gaps2, scaleX.ori, xOff, yOff, xDim, yDim);
      }
      if (bandClipDir != 0) {
        _paths.band = bandClipDir == 2 ? [
          clipBandLine(u4, seriesIdx, idx0, idx1, stroke, -1),
          clipBandLine(u4, seriesIdx, idx0, idx1, stroke, 1)
        ] : clipBandLine(u4, seriesIdx, idx0, idx1, stroke, bandClipDir);
      }
      return _paths;
    });
  };
}
function findColWidth(dataX, dataY, valToPosX, scaleX, xDim, xOff, colWid = inf) {
  if (dataX.length > 1) {
    let prevIdx = null;
    for (let i4 = 0, minDelta = Infinity; i4 < dataX.length; i4++) {
      if (dataY[i4] !== void 0) {
        if (prevIdx != null) {
          let delta = abs(dataX[i4] - dataX[prevIdx]);
          if (delta < minDelta) {
            minDelta = delta;
            colWid = abs(valToPosX(dataX[i4], scaleX, xDim, xOff) - valToPosX(dataX[prevIdx], scaleX, xDim, xOff));
          }
        }
        prevIdx = i4;
      }
    }
  }
  return colWid;
}
function bars(opts) {
  opts = opts || EMPTY_OBJ;
  const size = ifNull(opts.size, [0.6, inf, 1]);
  const align = opts.align || 0;
  const _extraGap = opts.gap || 0;
  let ro = opts.radius;
  ro = // [valueRadius, baselineRadius]
  ro == null ? [0, 0] : typeof ro == "number" ? [ro, 0] : ro;
  const radiusFn = fnOrSelf(ro);
  const gapFactor = 1 - size[0];
  const _maxWidth = ifNull(size[1], inf);
  const _minWidth = ifNull(size[2], 1);
  const disp = ifNull(opts.disp, EMPTY_OBJ);
  const _each = ifNull(opts.each, (_4) => {
  });
  const { fill: dispFills, stroke: dispStrokes } = disp;
  return (u4, seriesIdx, idx0, idx1) => {
    return orient(u4, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      let pxRound = series.pxRound;
      let _align = align;
      let extraGap = _extraGap * pxRatio;
      let maxWidth = _maxWidth * pxRatio;
      let minWidth = _minWidth * pxRatio;
      let valRadius, baseRadius;
      if (scaleX.ori == 0)
        [valRadius, baseRadius] = radiusFn(u4, seriesIdx);
      else
        [baseRadius, valRadius] = radiusFn(u4, seriesIdx);
      const _dirX = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
      let rect2 = scaleX.ori == 0 ? rectH : rectV;
      let each = scaleX.ori == 0 ? _each : (u5, seriesIdx2, i4, top, lft, hgt, wid) => {
        _each(u5, seriesIdx2, i4, lft, top, wid, hgt);
      };
      let band = ifNull(u4.bands, EMPTY_ARR).find((b) => b.series[0] == seriesIdx);
      let fillDir = band != null ? band.dir : 0;
      let fillTo = series.fillTo(u4, seriesIdx, series.min, series.max, fillDir);
      let fillToY = pxRound(valToPosY(fillTo, scaleY, yDim, yOff));
      let xShift, barWid, fullGap, colWid = xDim;
      let strokeWidth = pxRound(series.width * pxRatio);
      let multiPath = false;
      let fillColors = null;
      let fillPaths = null;
      let strokeColors = null;
      let strokePaths = null;
      if (dispFills != null && (strokeWidth == 0 || dispStrokes != null)) {
        multiPath = true;
        fillColors = dispFills.values(u4, seriesIdx, idx0, idx1);
        fillPaths = /* @__PURE__ */ new Map();
        new Set(fillColors).forEach((color) => {
          if (color != null)
            fillPaths.set(color, new Path2D());
        });
        if (strokeWidth > 0) {
          strokeColors = dispStrokes.values(u4, seriesIdx, idx0, idx1);
          strokePaths = /* @__PURE__ */ new Map();
          new Set(strokeColors).forEach((color) => {
            if (color != null)
              strokePaths.set(color, new Path2D());
          });
        }
      }
      let { x0, size: size2 } = disp;
      if (x0 != null && size2 != null) {
        _align = 1;
        dataX = x0.values(u4, seriesIdx, idx0, idx1);
        if (x0.unit == 2)
          dataX = dataX.map((pct) => u4.posToVal(xOff + pct * xDim, scaleX.key, true));
        let sizes = size2.values(u4, seriesIdx, idx0, idx1);
        if (size2.unit == 2)
          barWid = sizes[0] * xDim;
        else
          barWid = valToPosX(sizes[0], scaleX, xDim, xOff) - valToPosX(0, scaleX, xDim, xOff);
        colWid = findColWidth(dataX, dataY, valToPosX, scaleX, xDim, xOff, colWid);
        let gapWid = colWid - barWid;
        fullGap = gapWid + extraGap;
      } else {
        colWid = findColWidth(dataX, dataY, valToPosX, scaleX, xDim, xOff, colWid);
        let gapWid = colWid * gapFactor;
        fullGap = gapWid + extraGap;
        barWid = colWid - fullGap;
      }
      if (fullGap < 1)
        fullGap = 0;
      if (strokeWidth >= barWid / 2)
        strokeWidth = 0;
      if (fullGap < 5)
        pxRound = retArg0;
      let insetStroke = fullGap > 0;
      let rawBarWid = colWid - fullGap - (insetStroke ? strokeWidth : 0);
      barWid = pxRound(clamp(rawBarWid, minWidth, maxWidth));
      xShift = (_align == 0 ? barWid / 2 : _align == _dirX ? 0 : barWid) - _align * _dirX * ((_align == 0 ? extraGap / 2 : 0) + (insetStroke ? strokeWidth / 2 : 0));
      const _paths = { stroke: null, fill: null, clip: null, band: null, gaps: null, flags: 0 };
      const stroke = multiPath ? null : new Path2D();
      let dataY0 = null;
      if (band != null)
        dataY0 = u4.data[band.series[1]];
      else {
        let { y0, y1 } = disp;
        if (y0 != null && y1 != null) {
          dataY = y1.values(u4, seriesIdx, idx0, idx1);
          dataY0 = y0.values(u4, seriesIdx, idx0, idx1);
        }
      }
      let radVal = valRadius * barWid;
      let radBase = baseRadius * barWid;
      for (let i4 = _dirX == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += _dirX) {
        let yVal = dataY[i4];
        if (yVal == null)
          continue;
        if (dataY0 != null) {
          let yVal0 = dataY0[i4] ?? 0;
          if (yVal - yVal0 == 0)
            continue;
          fillToY = valToPosY(yVal0, scaleY, yDim, yOff);
        }
        let xVal = scaleX.distr != 2 || disp != null ? dataX[i4] : i4;
        let xPos = valToPosX(xVal, scaleX, xDim, xOff);
        let yPos = valToPosY(ifNull(yVal, fillTo), scaleY, yDim, yOff);
        let lft = pxRound(xPos - xShift);
        let btm = pxRound(max(yPos, fillToY));
        let top = pxRound(min(yPos, fillToY));
        let barHgt = btm - top;
        if (yVal != null) {
          let rv = yVal < 0 ? radBase : radVal;
          let rb2 = yVal < 0 ? radVal : radBase;
          if (multiPath) {
            if (strokeWidth > 0 && strokeColors[i4] != null)
              rect2(strokePaths.get(strokeColors[i4]), lft, top + floor(strokeWidth / 2), barWid, max(0, barHgt - strokeWidth), rv, rb2);
            if (fillColors[i4] != null)
              rect2(fillPaths.get(fillColors[i4]), lft, top + floor(strokeWidth / 2), barWid, max(0, barHgt - strokeWidth), rv, rb2);
          } else
            rect2(stroke, lft, top + floor(strokeWidth / 2), barWid, max(0, barHgt - strokeWidth), rv, rb2);
          each(
            u4,
            seriesIdx,
            i4,
            lft - strokeWidth / 2,
            top,
            barWid + strokeWidth,
            barHgt
          );
        }
      }
      if (strokeWidth > 0)
        _paths.stroke = multiPath ? strokePaths : stroke;
      else if (!multiPath) {
        _paths._fill = series.width == 0 ? series._fill : series._stroke ?? series._fill;
        _paths.width = 0;
      }
      _paths.fill = multiPath ? fillPaths : stroke;
      return _paths;
    });
  };
}
function splineInterp(interp, opts) {
  const alignGaps = ifNull(opts?.alignGaps, 0);
  return (u4, seriesIdx, idx0, idx1) => {
    return orient(u4, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      [idx0, idx1] = nonNullIdxs(dataY, idx0, idx1);
      let pxRound = series.pxRound;
      let pixelForX = (val) => pxRound(valToPosX(val, scaleX, xDim, xOff));
      let pixelForY = (val) => pxRound(valToPosY(val, scaleY, yDim, yOff));
      let moveTo, bezierCurveTo, lineTo;
      if (scaleX.ori == 0) {
        moveTo = moveToH;
        lineTo = lineToH;
        bezierCurveTo = bezierCurveToH;
      } else {
        moveTo = moveToV;
        lineTo = lineToV;
        bezierCurveTo = bezierCurveToV;
      }
      const dir = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
      let firstXPos = pixelForX(dataX[dir == 1 ? idx0 : idx1]);
      let prevXPos = firstXPos;
      let xCoords = [];
      let yCoords = [];
      for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
        let yVal = dataY[i4];
        if (yVal != null) {
          let xVal = dataX[i4];
          let xPos = pixelForX(xVal);
          xCoords.push(prevXPos = xPos);
          yCoords.push(pixelForY(dataY[i4]));
        }
      }
      const _paths = { stroke: interp(xCoords, yCoords, moveTo, lineTo, bezierCurveTo, pxRound), fill: null, clip: null, band: null, gaps: null, flags: BAND_CLIP_FILL };
      const stroke = _paths.stroke;
      let [bandFillDir, bandClipDir] = bandFillClipDirs(u4, seriesIdx);
      if (series.fill != null || bandFillDir != 0) {
        let fill3 = _paths.fill = new Path2D(stroke);
        let fillTo = series.fillTo(u4, seriesIdx, series.min, series.max, bandFillDir);
        let fillToY = pixelForY(fillTo);
        lineTo(fill3, prevXPos, fillToY);
        lineTo(fill3, firstXPos, fillToY);
      }
      if (!series.spanGaps) {
        let gaps2 = [];
        gaps2.push(...findGaps(dataX, dataY, idx0, idx1, dir, pixelForX, alignGaps));
        _paths.gaps = gaps2 = series.gaps(u4, seriesIdx, idx0, idx1, gaps2);
        _paths.clip = clipGaps(gaps2, scaleX.ori, xOff, yOff, xDim, yDim);
      }
      if (bandClipDir != 0) {
        _paths.band = bandClipDir == 2 ? [
          clipBandLine(u4, seriesIdx, idx0, idx1, stroke, -1),
          clipBandLine(u4, seriesIdx, idx0, idx1, stroke, 1)
        ] : clipBandLine(u4, seriesIdx, idx0, idx1, stroke, bandClipDir);
      }
      return _paths;
    });
  };
}
function monotoneCubic(opts) {
  return splineInterp(_monotoneCubic, opts);
}
function _monotoneCubic(xs, ys, moveTo, lineTo, bezierCurveTo, pxRound) {
  const n2 = xs.length;
  if (n2 < 2)
    return null;
  const path = new Path2D();
  moveTo(path, xs[0], ys[0]);
  if (n2 == 2)
    lineTo(path, xs[1], ys[1]);
  else {
    let ms = Array(n2), ds = Array(n2 - 1), dys = Array(n2 - 1), dxs = Array(n2 - 1);
    for (let i4 = 0; i4 < n2 - 1; i4++) {
      dys[i4] = ys[i4 + 1] - ys[i4];
      dxs[i4] = xs[i4 + 1] - xs[i4];
      ds[i4] = dys[i4] / dxs[i4];
    }
    ms[0] = ds[0];
    for (let i4 = 1; i4 < n2 - 1; i4++) {
      if (ds[i4] === 0 || ds[i4 - 1] === 0 || ds[i4 - 1] > 0 !== ds[i4] > 0)
        ms[i4] = 0;
      else {
        ms[i4] = 3 * (dxs[i4 - 1] + dxs[i4]) / ((2 * dxs[i4] + dxs[i4 - 1]) / ds[i4 - 1] + (dxs[i4] + 2 * dxs[i4 - 1]) / ds[i4]);
        if (!isFinite(ms[i4]))
          ms[i4] = 0;
      }
    }
    ms[n2 - 1] = ds[n2 - 2];
    for (let i4 = 0; i4 < n2 - 1; i4++) {
      bezierCurveTo(
        path,
        xs[i4] + dxs[i4] / 3,
        ys[i4] + ms[i4] * dxs[i4] / 3,
        xs[i4 + 1] - dxs[i4] / 3,
        ys[i4 + 1] - ms[i4 + 1] * dxs[i4] / 3,
        xs[i4 + 1],
        ys[i4 + 1]
      );
    }
  }
  return path;
}
var cursorPlots = /* @__PURE__ */ new Set();
function invalidateRects() {
  for (let u4 of cursorPlots)
    u4.syncRect(true);
}
if (domEnv) {
  on(resize, win, invalidateRects);
  on(scroll, win, invalidateRects, true);
  on(dppxchange, win, () => {
    uPlot.pxRatio = pxRatio;
  });
}
var linearPath = linear();
var pointsPath = points2();
function setDefaults(d3, xo, yo, initY) {
  let d22 = initY ? [d3[0], d3[1]].concat(d3.slice(2)) : [d3[0]].concat(d3.slice(1));
  return d22.map((o3, i4) => setDefault(o3, i4, xo, yo));
}
function setDefaults2(d3, xyo) {
  return d3.map((o3, i4) => i4 == 0 ? {} : assign({}, xyo, o3));
}
function setDefault(o3, i4, xo, yo) {
  return assign({}, i4 == 0 ? xo : yo, o3);
}
function snapNumX(self, dataMin, dataMax) {
  return dataMin == null ? nullNullTuple : [dataMin, dataMax];
}
var snapTimeX = snapNumX;
function snapNumY(self, dataMin, dataMax) {
  return dataMin == null ? nullNullTuple : rangeNum(dataMin, dataMax, rangePad, true);
}
function snapLogY(self, dataMin, dataMax, scale) {
  return dataMin == null ? nullNullTuple : rangeLog(dataMin, dataMax, self.scales[scale].log, false);
}
var snapLogX = snapLogY;
function snapAsinhY(self, dataMin, dataMax, scale) {
  return dataMin == null ? nullNullTuple : rangeAsinh(dataMin, dataMax, self.scales[scale].log, false);
}
var snapAsinhX = snapAsinhY;
function findIncr(minVal, maxVal, incrs, dim, minSpace) {
  let intDigits = max(numIntDigits(minVal), numIntDigits(maxVal));
  let delta = maxVal - minVal;
  let incrIdx = closestIdx(minSpace / dim * delta, incrs);
  do {
    let foundIncr = incrs[incrIdx];
    let foundSpace = dim * foundIncr / delta;
    if (foundSpace >= minSpace && intDigits + (foundIncr < 5 ? fixedDec.get(foundIncr) : 0) <= 17)
      return [foundIncr, foundSpace];
  } while (++incrIdx < incrs.length);
  return [0, 0];
}
function pxRatioFont(font2) {
  let fontSize, fontSizeCss;
  font2 = font2.replace(/(\d+)px/, (m3, p1) => (fontSize = round2((fontSizeCss = +p1) * pxRatio)) + "px");
  return [font2, fontSize, fontSizeCss];
}
function syncFontSize(axis) {
  if (axis.show) {
    [axis.font, axis.labelFont].forEach((f4) => {
      let size = roundDec(f4[2] * pxRatio, 1);
      f4[0] = f4[0].replace(/[0-9.]+px/, size + "px");
      f4[1] = size;
    });
  }
}
function uPlot(opts, data, then) {
  const self = {
    mode: ifNull(opts.mode, 1)
  };
  const mode = self.mode;
  function getHPos(val, scale, dim, off2) {
    let pct = scale.valToPct(val);
    return off2 + dim * (scale.dir == -1 ? 1 - pct : pct);
  }
  function getVPos(val, scale, dim, off2) {
    let pct = scale.valToPct(val);
    return off2 + dim * (scale.dir == -1 ? pct : 1 - pct);
  }
  function getPos(val, scale, dim, off2) {
    return scale.ori == 0 ? getHPos(val, scale, dim, off2) : getVPos(val, scale, dim, off2);
  }
  self.valToPosH = getHPos;
  self.valToPosV = getVPos;
  let ready = false;
  self.status = 0;
  const root = self.root = placeDiv(UPLOT);
  if (opts.id != null)
    root.id = opts.id;
  addClass(root, opts.class);
  if (opts.title) {
    let title = placeDiv(TITLE, root);
    title.textContent = opts.title;
  }
  const can = placeTag("canvas");
  const ctx = self.ctx = can.getContext("2d");
  const wrap = placeDiv(WRAP, root);
  on("click", wrap, (e3) => {
    if (e3.target === over) {
      let didDrag = mouseLeft1 != mouseLeft0 || mouseTop1 != mouseTop0;
      didDrag && drag.click(self, e3);
    }
  }, true);
  const under = self.under = placeDiv(UNDER, wrap);
  wrap.appendChild(can);
  const over = self.over = placeDiv(OVER, wrap);
  opts = copy(opts);
  const pxAlign = +ifNull(opts.pxAlign, 1);
  const pxRound = pxRoundGen(pxAlign);
  (opts.plugins || []).forEach((p3) => {
    if (p3.opts)
      opts = p3.opts(self, opts) || opts;
  });
  const ms = opts.ms || 1e-3;
  const series = self.series = mode == 1 ? setDefaults(opts.series || [], xSeriesOpts, ySeriesOpts, false) : setDefaults2(opts.series || [null], xySeriesOpts);
  const axes = self.axes = setDefaults(opts.axes || [], xAxisOpts, yAxisOpts, true);
  const scales = self.scales = {};
  const bands = self.bands = opts.bands || [];
  bands.forEach((b) => {
    b.fill = fnOrSelf(b.fill || null);
    b.dir = ifNull(b.dir, -1);
  });
  const xScaleKey = mode == 2 ? series[1].facets[0].scale : series[0].scale;
  const drawOrderMap = {
    axes: drawAxesGrid,
    series: drawSeries
  };
  const drawOrder = (opts.drawOrder || ["axes", "series"]).map((key2) => drawOrderMap[key2]);
  function initValToPct(sc) {
    const getVal = sc.distr == 3 ? (val) => log10(val > 0 ? val : sc.clamp(self, val, sc.min, sc.max, sc.key)) : sc.distr == 4 ? (val) => asinh(val, sc.asinh) : sc.distr == 100 ? (val) => sc.fwd(val) : (val) => val;
    return (val) => {
      let _val = getVal(val);
      let { _min, _max } = sc;
      let delta = _max - _min;
      return (_val - _min) / delta;
    };
  }
  function initScale(scaleKey) {
    let sc = scales[scaleKey];
    if (sc == null) {
      let scaleOpts = (opts.scales || EMPTY_OBJ)[scaleKey] || EMPTY_OBJ;
      if (scaleOpts.from != null) {
        initScale(scaleOpts.from);
        let sc2 = assign({}, scales[scaleOpts.from], scaleOpts, { key: scaleKey });
        sc2.valToPct = initValToPct(sc2);
        scales[scaleKey] = sc2;
      } else {
        sc = scales[scaleKey] = assign({}, scaleKey == xScaleKey ? xScaleOpts : yScaleOpts, scaleOpts);
        sc.key = scaleKey;
        let isTime = sc.time;
        let rn = sc.range;
        let rangeIsArr = isArr(rn);
        if (scaleKey != xScaleKey || mode == 2 && !isTime) {
          if (rangeIsArr && (rn[0] == null || rn[1] == null)) {
            rn = {
              min: rn[0] == null ? autoRangePart : {
                mode: 1,
                hard: rn[0],
                soft: rn[0]
              },
              max: rn[1] == null ? autoRangePart : {
                mode: 1,
                hard: rn[1],
                soft: rn[1]
              }
            };
            rangeIsArr = false;
          }
          if (!rangeIsArr && isObj(rn)) {
            let cfg = rn;
            rn = (self2, dataMin, dataMax) => dataMin == null ? nullNullTuple : rangeNum(dataMin, dataMax, cfg);
          }
        }
        sc.range = fnOrSelf(rn || (isTime ? snapTimeX : scaleKey == xScaleKey ? sc.distr == 3 ? snapLogX : sc.distr == 4 ? snapAsinhX : snapNumX : sc.distr == 3 ? snapLogY : sc.distr == 4 ? snapAsinhY : snapNumY));
        sc.auto = fnOrSelf(rangeIsArr ? false : sc.auto);
        sc.clamp = fnOrSelf(sc.clamp || clampScale);
        sc._min = sc._max = null;
        sc.valToPct = initValToPct(sc);
      }
    }
  }
  initScale("x");
  initScale("y");
  if (mode == 1) {
    series.forEach((s3) => {
      initScale(s3.scale);
    });
  }
  axes.forEach((a3) => {
    initScale(a3.scale);
  });
  for (let k3 in opts.scales)
    initScale(k3);
  const scaleX = scales[xScaleKey];
  const xScaleDistr = scaleX.distr;
  let valToPosX, valToPosY;
  if (scaleX.ori == 0) {
    addClass(root, ORI_HZ);
    valToPosX = getHPos;
    valToPosY = getVPos;
  } else {
    addClass(root, ORI_VT);
    valToPosX = getVPos;
    valToPosY = getHPos;
  }
  const pendScales = {};
  for (let k3 in scales) {
    let sc = scales[k3];
    if (sc.min != null || sc.max != null) {
      pendScales[k3] = { min: sc.min, max: sc.max };
      sc.min = sc.max = null;
    }
  }
  const _tzDate = opts.tzDate || ((ts) => new Date(round2(ts / ms)));
  const _fmtDate = opts.fmtDate || fmtDate;
  const _timeAxisSplits = ms == 1 ? timeAxisSplitsMs(_tzDate) : timeAxisSplitsS(_tzDate);
  const _timeAxisVals = timeAxisVals(_tzDate, timeAxisStamps(ms == 1 ? _timeAxisStampsMs : _timeAxisStampsS, _fmtDate));
  const _timeSeriesVal = timeSeriesVal(_tzDate, timeSeriesStamp(_timeSeriesStamp, _fmtDate));
  const activeIdxs = [];
  const legend = self.legend = assign({}, legendOpts, opts.legend);
  const cursor = self.cursor = assign({}, cursorOpts, { drag: { y: mode == 2 } }, opts.cursor);
  const showLegend = legend.show;
  const showCursor = cursor.show;
  const markers = legend.markers;
  {
    legend.idxs = activeIdxs;
    markers.width = fnOrSelf(markers.width);
    markers.dash = fnOrSelf(markers.dash);
    markers.stroke = fnOrSelf(markers.stroke);
    markers.fill = fnOrSelf(markers.fill);
  }
  let legendTable;
  let legendHead;
  let legendBody;
  let legendRows = [];
  let legendCells = [];
  let legendCols;
  let multiValLegend = false;
  let NULL_LEGEND_VALUES = {};
  if (legend.live) {
    const getMultiVals = series[1] ? series[1].values : null;
    multiValLegend = getMultiVals != null;
    legendCols = multiValLegend ? getMultiVals(self, 1, 0) : { _: 0 };
    for (let k3 in legendCols)
      NULL_LEGEND_VALUES[k3] = LEGEND_DISP;
  }
  if (showLegend) {
    legendTable = placeTag("table", LEGEND, root);
    legendBody = placeTag("tbody", null, legendTable);
    legend.mount(self, legendTable);
    if (multiValLegend) {
      legendHead = placeTag("thead", null, legendTable, legendBody);
      let head = placeTag("tr", null, legendHead);
      placeTag("th", null, head);
      for (var key in legendCols)
        placeTag("th", LEGEND_LABEL, head).textContent = key;
    } else {
      addClass(legendTable, LEGEND_INLINE);
      legend.live && addClass(legendTable, LEGEND_LIVE);
    }
  }
  const son = { show: true };
  const soff = { show: false };
  function initLegendRow(s3, i4) {
    if (i4 == 0 && (multiValLegend || !legend.live || mode == 2))
      return nullNullTuple;
    let cells = [];
    let row = placeTag("tr", LEGEND_SERIES, legendBody, legendBody.childNodes[i4]);
    addClass(row, s3.class);
    if (!s3.show)
      addClass(row, OFF);
    let label = placeTag("th", null, row);
    if (markers.show) {
      let indic = placeDiv(LEGEND_MARKER, label);
      if (i4 > 0) {
        let width = markers.width(self, i4);
        if (width)
          indic.style.border = width + "px " + markers.dash(self, i4) + " " + markers.stroke(self, i4);
        indic.style.background = markers.fill(self, i4);
      }
    }
    let text = placeDiv(LEGEND_LABEL, label);
    if (s3.label instanceof HTMLElement)
      text.appendChild(s3.label);
    else
      text.textContent = s3.label;
    if (i4 > 0) {
      if (!markers.show)
        text.style.color = s3.width > 0 ? markers.stroke(self, i4) : markers.fill(self, i4);
      onMouse("click", label, (e3) => {
        if (cursor._lock)
          return;
        setCursorEvent(e3);
        let seriesIdx = series.indexOf(s3);
        if ((e3.ctrlKey || e3.metaKey) != legend.isolate) {
          let isolate = series.some((s4, i5) => i5 > 0 && i5 != seriesIdx && s4.show);
          series.forEach((s4, i5) => {
            i5 > 0 && setSeries(i5, isolate ? i5 == seriesIdx ? son : soff : son, true, syncOpts.setSeries);
          });
        } else
          setSeries(seriesIdx, { show: !s3.show }, true, syncOpts.setSeries);
      }, false);
      if (cursorFocus) {
        onMouse(mouseenter, label, (e3) => {
          if (cursor._lock)
            return;
          setCursorEvent(e3);
          setSeries(series.indexOf(s3), FOCUS_TRUE, true, syncOpts.setSeries);
        }, false);
      }
    }
    for (var key2 in legendCols) {
      let v3 = placeTag("td", LEGEND_VALUE, row);
      v3.textContent = "--";
      cells.push(v3);
    }
    return [row, cells];
  }
  const mouseListeners = /* @__PURE__ */ new Map();
  function onMouse(ev, targ, fn, onlyTarg = true) {
    const targListeners = mouseListeners.get(targ) || {};
    const listener = cursor.bind[ev](self, targ, fn, onlyTarg);
    if (listener) {
      on(ev, targ, targListeners[ev] = listener);
      mouseListeners.set(targ, targListeners);
    }
  }
  function offMouse(ev, targ, fn) {
    const targListeners = mouseListeners.get(targ) || {};
    for (let k3 in targListeners) {
      if (ev == null || k3 == ev) {
        off(k3, targ, targListeners[k3]);
        delete targListeners[k3];
      }
    }
    if (ev == null)
      mouseListeners.delete(targ);
  }
  let fullWidCss = 0;
  let fullHgtCss = 0;
  let plotWidCss = 0;
  let plotHgtCss = 0;
  let plotLftCss = 0;
  let plotTopCss = 0;
  let _plotLftCss = plotLftCss;
  let _plotTopCss = plotTopCss;
  let _plotWidCss = plotWidCss;
  let _plotHgtCss = plotHgtCss;
  let plotLft = 0;
  let plotTop = 0;
  let plotWid = 0;
  let plotHgt = 0;
  self.bbox = {};
  let shouldSetScales = false;
  let shouldSetSize = false;
  let shouldConvergeSize = false;
  let shouldSetCursor = false;
  let shouldSetSelect = false;
  let shouldSetLegend = false;
  function _setSize(width, height, force) {
    if (force || (width != self.width || height != self.height))
      calcSize(width, height);
    resetYSeries(false);
    shouldConvergeSize = true;
    shouldSetSize = true;
    commit();
  }
  function calcSize(width, height) {
    self.width = fullWidCss = plotWidCss = width;
    self.height = fullHgtCss = plotHgtCss = height;
    plotLftCss = plotTopCss = 0;
    calcPlotRect();
    calcAxesRects();
    let bb = self.bbox;
    plotLft = bb.left = incrRound(plotLftCss * pxRatio, 0.5);
    plotTop = bb.top = incrRound(plotTopCss * pxRatio, 0.5);
    plotWid = bb.width = incrRound(plotWidCss * pxRatio, 0.5);
    plotHgt = bb.height = incrRound(plotHgtCss * pxRatio, 0.5);
  }
  const CYCLE_LIMIT = 3;
  function convergeSize() {
    let converged = false;
    let cycleNum = 0;
    while (!converged) {
      cycleNum++;
      let axesConverged = axesCalc(cycleNum);
      let paddingConverged = paddingCalc(cycleNum);
      converged = cycleNum == CYCLE_LIMIT || axesConverged && paddingConverged;
      if (!converged) {
        calcSize(self.width, self.height);
        shouldSetSize = true;
      }
    }
  }
  function setSize({ width, height }) {
    _setSize(width, height);
  }
  self.setSize = setSize;
  function calcPlotRect() {
    let hasTopAxis = false;
    let hasBtmAxis = false;
    let hasRgtAxis = false;
    let hasLftAxis = false;
    axes.forEach((axis, i4) => {
      if (axis.show && axis._show) {
        let { side, _size } = axis;
        let isVt = side % 2;
        let labelSize = axis.label != null ? axis.labelSize : 0;
        let fullSize = _size + labelSize;
        if (fullSize > 0) {
          if (isVt) {
            plotWidCss -= fullSize;
            if (side == 3) {
              plotLftCss += fullSize;
              hasLftAxis = true;
            } else
              hasRgtAxis = true;
          } else {
            plotHgtCss -= fullSize;
            if (side == 0) {
              plotTopCss += fullSize;
              hasTopAxis = true;
            } else
              hasBtmAxis = true;
          }
        }
      }
    });
    sidesWithAxes[0] = hasTopAxis;
    sidesWithAxes[1] = hasRgtAxis;
    sidesWithAxes[2] = hasBtmAxis;
    sidesWithAxes[3] = hasLftAxis;
    plotWidCss -= _padding[1] + _padding[3];
    plotLftCss += _padding[3];
    plotHgtCss -= _padding[2] + _padding[0];
    plotTopCss += _padding[0];
  }
  function calcAxesRects() {
    let off1 = plotLftCss + plotWidCss;
    let off2 = plotTopCss + plotHgtCss;
    let off3 = plotLftCss;
    let off0 = plotTopCss;
    function incrOffset(side, size) {
      switch (side) {
        case 1:
          off1 += size;
          return off1 - size;
        case 2:
          off2 += size;
          return off2 - size;
        case 3:
          off3 -= size;
          return off3 + size;
        case 0:
          off0 -= size;
          return off0 + size;
      }
    }
    axes.forEach((axis, i4) => {
      if (axis.show && axis._show) {
        let side = axis.side;
        axis._pos = incrOffset(side, axis._size);
        if (axis.label != null)
          axis._lpos = incrOffset(side, axis.labelSize);
      }
    });
  }
  if (cursor.dataIdx == null) {
    let hov = cursor.hover;
    let skip = hov.skip = new Set(hov.skip ?? []);
    skip.add(void 0);
    let prox = hov.prox = fnOrSelf(hov.prox);
    let bias = hov.bias ??= 0;
    cursor.dataIdx = (self2, seriesIdx, cursorIdx, valAtPosX) => {
      if (seriesIdx == 0)
        return cursorIdx;
      let idx2 = cursorIdx;
      let _prox = prox(self2, seriesIdx, cursorIdx, valAtPosX) ?? inf;
      let withProx = _prox >= 0 && _prox < inf;
      let xDim = scaleX.ori == 0 ? plotWidCss : plotHgtCss;
      let cursorLft = cursor.left;
      let xValues = data[0];
      let yValues = data[seriesIdx];
      if (skip.has(yValues[cursorIdx])) {
        idx2 = null;
        let nonNullLft = null, nonNullRgt = null, j3;
        if (bias == 0 || bias == -1) {
          j3 = cursorIdx;
          while (nonNullLft == null && j3-- > 0) {
            if (!skip.has(yValues[j3]))
              nonNullLft = j3;
          }
        }
        if (bias == 0 || bias == 1) {
          j3 = cursorIdx;
          while (nonNullRgt == null && j3++ < yValues.length) {
            if (!skip.has(yValues[j3]))
              nonNullRgt = j3;
          }
        }
        if (nonNullLft != null || nonNullRgt != null) {
          if (withProx) {
            let lftPos = nonNullLft == null ? -Infinity : valToPosX(xValues[nonNullLft], scaleX, xDim, 0);
            let rgtPos = nonNullRgt == null ? Infinity : valToPosX(xValues[nonNullRgt], scaleX, xDim, 0);
            let lftDelta = cursorLft - lftPos;
            let rgtDelta = rgtPos - cursorLft;
            if (lftDelta <= rgtDelta) {
              if (lftDelta <= _prox)
                idx2 = nonNullLft;
            } else {
              if (rgtDelta <= _prox)
                idx2 = nonNullRgt;
            }
          } else {
            idx2 = nonNullRgt == null ? nonNullLft : nonNullLft == null ? nonNullRgt : cursorIdx - nonNullLft <= nonNullRgt - cursorIdx ? nonNullLft : nonNullRgt;
          }
        }
      } else if (withProx) {
        let dist = abs(cursorLft - valToPosX(xValues[cursorIdx], scaleX, xDim, 0));
        if (dist > _prox)
          idx2 = null;
      }
      return idx2;
    };
  }
  const setCursorEvent = (e3) => {
    cursor.event = e3;
  };
  cursor.idxs = activeIdxs;
  cursor._lock = false;
  let points3 = cursor.points;
  points3.show = fnOrSelf(points3.show);
  points3.size = fnOrSelf(points3.size);
  points3.stroke = fnOrSelf(points3.stroke);
  points3.width = fnOrSelf(points3.width);
  points3.fill = fnOrSelf(points3.fill);
  const focus = self.focus = assign({}, opts.focus || { alpha: 0.3 }, cursor.focus);
  const cursorFocus = focus.prox >= 0;
  const cursorOnePt = cursorFocus && points3.one;
  let cursorPts = [];
  let cursorPtsLft = [];
  let cursorPtsTop = [];
  function initCursorPt(s3, si) {
    let pt = points3.show(self, si);
    if (pt instanceof HTMLElement) {
      addClass(pt, CURSOR_PT);
      addClass(pt, s3.class);
      elTrans(pt, -10, -10, plotWidCss, plotHgtCss);
      over.insertBefore(pt, cursorPts[si]);
      return pt;
    }
  }
  function initSeries(s3, i4) {
    if (mode == 1 || i4 > 0) {
      let isTime = mode == 1 && scales[s3.scale].time;
      let sv = s3.value;
      s3.value = isTime ? isStr(sv) ? timeSeriesVal(_tzDate, timeSeriesStamp(sv, _fmtDate)) : sv || _timeSeriesVal : sv || numSeriesVal;
      s3.label = s3.label || (isTime ? timeSeriesLabel : numSeriesLabel);
    }
    if (cursorOnePt || i4 > 0) {
      s3.width = s3.width == null ? 1 : s3.width;
      s3.paths = s3.paths || linearPath || retNull;
      s3.fillTo = fnOrSelf(s3.fillTo || seriesFillTo);
      s3.pxAlign = +ifNull(s3.pxAlign, pxAlign);
      s3.pxRound = pxRoundGen(s3.pxAlign);
      s3.stroke = fnOrSelf(s3.stroke || null);
      s3.fill = fnOrSelf(s3.fill || null);
      s3._stroke = s3._fill = s3._paths = s3._focus = null;
      let _ptDia = ptDia(max(1, s3.width), 1);
      let points4 = s3.points = assign({}, {
        size: _ptDia,
        width: max(1, _ptDia * 0.2),
        stroke: s3.stroke,
        space: _ptDia * 2,
        paths: pointsPath,
        _stroke: null,
        _fill: null
      }, s3.points);
      points4.show = fnOrSelf(points4.show);
      points4.filter = fnOrSelf(points4.filter);
      points4.fill = fnOrSelf(points4.fill);
      points4.stroke = fnOrSelf(points4.stroke);
      points4.paths = fnOrSelf(points4.paths);
      points4.pxAlign = s3.pxAlign;
    }
    if (showLegend) {
      let rowCells = initLegendRow(s3, i4);
      legendRows.splice(i4, 0, rowCells[0]);
      legendCells.splice(i4, 0, rowCells[1]);
      legend.values.push(null);
    }
    if (showCursor) {
      activeIdxs.splice(i4, 0, null);
      let pt = null;
      if (cursorOnePt) {
        if (i4 == 0)
          pt = initCursorPt(s3, i4);
      } else if (i4 > 0)
        pt = initCursorPt(s3, i4);
      cursorPts.splice(i4, 0, pt);
      cursorPtsLft.splice(i4, 0, 0);
      cursorPtsTop.splice(i4, 0, 0);
    }
    fire("addSeries", i4);
  }
  function addSeries(opts2, si) {
    si = si == null ? series.length : si;
    opts2 = mode == 1 ? setDefault(opts2, si, xSeriesOpts, ySeriesOpts) : setDefault(opts2, si, {}, xySeriesOpts);
    series.splice(si, 0, opts2);
    initSeries(series[si], si);
  }
  self.addSeries = addSeries;
  function delSeries(i4) {
    series.splice(i4, 1);
    if (showLegend) {
      legend.values.splice(i4, 1);
      legendCells.splice(i4, 1);
      let tr = legendRows.splice(i4, 1)[0];
      offMouse(null, tr.firstChild);
      tr.remove();
    }
    if (showCursor) {
      activeIdxs.splice(i4, 1);
      cursorPts.splice(i4, 1)[0].remove();
      cursorPtsLft.splice(i4, 1);
      cursorPtsTop.splice(i4, 1);
    }
    fire("delSeries", i4);
  }
  self.delSeries = delSeries;
  const sidesWithAxes = [false, false, false, false];
  function initAxis(axis, i4) {
    axis._show = axis.show;
    if (axis.show) {
      let isVt = axis.side % 2;
      let sc = scales[axis.scale];
      if (sc == null) {
        axis.scale = isVt ? series[1].scale : xScaleKey;
        sc = scales[axis.scale];
      }
      let isTime = sc.time;
      axis.size = fnOrSelf(axis.size);
      axis.space = fnOrSelf(axis.space);
      axis.rotate = fnOrSelf(axis.rotate);
      if (isArr(axis.incrs)) {
        axis.incrs.forEach((incr) => {
          !fixedDec.has(incr) && fixedDec.set(incr, guessDec(incr));
        });
      }
      axis.incrs = fnOrSelf(axis.incrs || (sc.distr == 2 ? wholeIncrs : isTime ? ms == 1 ? timeIncrsMs : timeIncrsS : numIncrs));
      axis.splits = fnOrSelf(axis.splits || (isTime && sc.distr == 1 ? _timeAxisSplits : sc.distr == 3 ? logAxisSplits : sc.distr == 4 ? asinhAxisSplits : numAxisSplits));
      axis.stroke = fnOrSelf(axis.stroke);
      axis.grid.stroke = fnOrSelf(axis.grid.stroke);
      axis.ticks.stroke = fnOrSelf(axis.ticks.stroke);
      axis.border.stroke = fnOrSelf(axis.border.stroke);
      let av = axis.values;
      axis.values = // static array of tick values
      isArr(av) && !isArr(av[0]) ? fnOrSelf(av) : (
        // temporal
        isTime ? (
          // config array of fmtDate string tpls
          isArr(av) ? timeAxisVals(_tzDate, timeAxisStamps(av, _fmtDate)) : (
            // fmtDate string tpl
            isStr(av) ? timeAxisVal(_tzDate, av) : av || _timeAxisVals
          )
        ) : av || numAxisVals
      );
      axis.filter = fnOrSelf(axis.filter || (sc.distr >= 3 && sc.log == 10 ? log10AxisValsFilt : sc.distr == 3 && sc.log == 2 ? log2AxisValsFilt : retArg1));
      axis.font = pxRatioFont(axis.font);
      axis.labelFont = pxRatioFont(axis.labelFont);
      axis._size = axis.size(self, null, i4, 0);
      axis._space = axis._rotate = axis._incrs = axis._found = // foundIncrSpace
      axis._splits = axis._values = null;
      if (axis._size > 0) {
        sidesWithAxes[i4] = true;
        axis._el = placeDiv(AXIS, wrap);
      }
    }
  }
  function autoPadSide(self2, side, sidesWithAxes2, cycleNum) {
    let [hasTopAxis, hasRgtAxis, hasBtmAxis, hasLftAxis] = sidesWithAxes2;
    let ori = side % 2;
    let size = 0;
    if (ori == 0 && (hasLftAxis || hasRgtAxis))
      size = side == 0 && !hasTopAxis || side == 2 && !hasBtmAxis ? round2(xAxisOpts.size / 3) : 0;
    if (ori == 1 && (hasTopAxis || hasBtmAxis))
      size = side == 1 && !hasRgtAxis || side == 3 && !hasLftAxis ? round2(yAxisOpts.size / 2) : 0;
    return size;
  }
  const padding = self.padding = (opts.padding || [autoPadSide, autoPadSide, autoPadSide, autoPadSide]).map((p3) => fnOrSelf(ifNull(p3, autoPadSide)));
  const _padding = self._padding = padding.map((p3, i4) => p3(self, i4, sidesWithAxes, 0));
  let dataLen;
  let i0 = null;
  let i1 = null;
  const idxs = mode == 1 ? series[0].idxs : null;
  let data0 = null;
  let viaAutoScaleX = false;
  function setData(_data, _resetScales) {
    data = _data == null ? [] : _data;
    self.data = self._data = data;
    if (mode == 2) {
      dataLen = 0;
      for (let i4 = 1; i4 < series.length; i4++)
        dataLen += data[i4][0].length;
    } else {
      if (data.length == 0)
        self.data = self._data = data = [[]];
      data0 = data[0];
      dataLen = data0.length;
      let scaleData = data;
      if (xScaleDistr == 2) {
        scaleData = data.slice();
        let _data0 = scaleData[0] = Array(dataLen);
        for (let i4 = 0; i4 < dataLen; i4++)
          _data0[i4] = i4;
      }
      self._data = data = scaleData;
    }
    resetYSeries(true);
    fire("setData");
    if (xScaleDistr == 2) {
      shouldConvergeSize = true;
    }
    if (_resetScales !== false) {
      let xsc = scaleX;
      if (xsc.auto(self, viaAutoScaleX))
        autoScaleX();
      else
        _setScale(xScaleKey, xsc.min, xsc.max);
      shouldSetCursor = shouldSetCursor || cursor.left >= 0;
      shouldSetLegend = true;
      commit();
    }
  }
  self.setData = setData;
  function autoScaleX() {
    viaAutoScaleX = true;
    let _min, _max;
    if (mode == 1) {
      if (dataLen > 0) {
        i0 = idxs[0] = 0;
        i1 = idxs[1] = dataLen - 1;
        _min = data[0][i0];
        _max = data[0][i1];
        if (xScaleDistr == 2) {
          _min = i0;
          _max = i1;
        } else if (_min == _max) {
          if (xScaleDistr == 3)
            [_min, _max] = rangeLog(_min, _min, scaleX.log, false);
          else if (xScaleDistr == 4)
            [_min, _max] = rangeAsinh(_min, _min, scaleX.log, false);
          else if (scaleX.time)
            _max = _min + round2(86400 / ms);
          else
            [_min, _max] = rangeNum(_min, _max, rangePad, true);
        }
      } else {
        i0 = idxs[0] = _min = null;
        i1 = idxs[1] = _max = null;
      }
    }
    _setScale(xScaleKey, _min, _max);
  }
  let ctxStroke, ctxFill, ctxWidth, ctxDash, ctxJoin, ctxCap, ctxFont, ctxAlign, ctxBaseline;
  let ctxAlpha;
  function setCtxStyle(stroke, width, dash, cap, fill3, join2) {
    stroke ??= transparent;
    dash ??= EMPTY_ARR;
    cap ??= "butt";
    fill3 ??= transparent;
    join2 ??= "round";
    if (stroke != ctxStroke)
      ctx.strokeStyle = ctxStroke = stroke;
    if (fill3 != ctxFill)
      ctx.fillStyle = ctxFill = fill3;
    if (width != ctxWidth)
      ctx.lineWidth = ctxWidth = width;
    if (join2 != ctxJoin)
      ctx.lineJoin = ctxJoin = join2;
    if (cap != ctxCap)
      ctx.lineCap = ctxCap = cap;
    if (dash != ctxDash)
      ctx.setLineDash(ctxDash = dash);
  }
  function setFontStyle(font2, fill3, align, baseline) {
    if (fill3 != ctxFill)
      ctx.fillStyle = ctxFill = fill3;
    if (font2 != ctxFont)
      ctx.font = ctxFont = font2;
    if (align != ctxAlign)
      ctx.textAlign = ctxAlign = align;
    if (baseline != ctxBaseline)
      ctx.textBaseline = ctxBaseline = baseline;
  }
  function accScale(wsc, psc, facet2, data2, sorted = 0) {
    if (data2.length > 0 && wsc.auto(self, viaAutoScaleX) && (psc == null || psc.min == null)) {
      let _i0 = ifNull(i0, 0);
      let _i1 = ifNull(i1, data2.length - 1);
      let minMax = facet2.min == null ? getMinMax(data2, _i0, _i1, sorted, wsc.distr == 3) : [facet2.min, facet2.max];
      wsc.min = min(wsc.min, facet2.min = minMax[0]);
      wsc.max = max(wsc.max, facet2.max = minMax[1]);
    }
  }
  const AUTOSCALE = { min: null, max: null };
  function setScales() {
    for (let k3 in scales) {
      let sc = scales[k3];
      if (pendScales[k3] == null && // scales that have never been set (on init)
      (sc.min == null || // or auto scales when the x scale was explicitly set
      pendScales[xScaleKey] != null && sc.auto(self, viaAutoScaleX))) {
        pendScales[k3] = AUTOSCALE;
      }
    }
    for (let k3 in scales) {
      let sc = scales[k3];
      if (pendScales[k3] == null && sc.from != null && pendScales[sc.from] != null)
        pendScales[k3] = AUTOSCALE;
    }
    if (pendScales[xScaleKey] != null)
      resetYSeries(true);
    let wipScales = {};
    for (let k3 in pendScales) {
      let psc = pendScales[k3];
      if (psc != null) {
        let wsc = wipScales[k3] = copy(scales[k3], fastIsObj);
        if (psc.min != null)
          assign(wsc, psc);
        else if (k3 != xScaleKey || mode == 2) {
          if (dataLen == 0 && wsc.from == null) {
            let minMax = wsc.range(self, null, null, k3);
            wsc.min = minMax[0];
            wsc.max = minMax[1];
          } else {
            wsc.min = inf;
            wsc.max = -inf;
          }
        }
      }
    }
    if (dataLen > 0) {
      series.forEach((s3, i4) => {
        if (mode == 1) {
          let k3 = s3.scale;
          let psc = pendScales[k3];
          if (psc == null)
            return;
          let wsc = wipScales[k3];
          if (i4 == 0) {
            let minMax = wsc.range(self, wsc.min, wsc.max, k3);
            wsc.min = minMax[0];
            wsc.max = minMax[1];
            i0 = closestIdx(wsc.min, data[0]);
            i1 = closestIdx(wsc.max, data[0]);
            if (i1 - i0 > 1) {
              if (data[0][i0] < wsc.min)
                i0++;
              if (data[0][i1] > wsc.max)
                i1--;
            }
            s3.min = data0[i0];
            s3.max = data0[i1];
          } else if (s3.show && s3.auto)
            accScale(wsc, psc, s3, data[i4], s3.sorted);
          s3.idxs[0] = i0;
          s3.idxs[1] = i1;
        } else {
          if (i4 > 0) {
            if (s3.show && s3.auto) {
              let [xFacet, yFacet] = s3.facets;
              let xScaleKey2 = xFacet.scale;
              let yScaleKey = yFacet.scale;
              let [xData, yData] = data[i4];
              let wscx = wipScales[xScaleKey2];
              let wscy = wipScales[yScaleKey];
              wscx != null && accScale(wscx, pendScales[xScaleKey2], xFacet, xData, xFacet.sorted);
              wscy != null && accScale(wscy, pendScales[yScaleKey], yFacet, yData, yFacet.sorted);
              s3.min = yFacet.min;
              s3.max = yFacet.max;
            }
          }
        }
      });
      for (let k3 in wipScales) {
        let wsc = wipScales[k3];
        let psc = pendScales[k3];
        if (wsc.from == null && (psc == null || psc.min == null)) {
          let minMax = wsc.range(
            self,
            wsc.min == inf ? null : wsc.min,
            wsc.max == -inf ? null : wsc.max,
            k3
          );
          wsc.min = minMax[0];
          wsc.max = minMax[1];
        }
      }
    }
    for (let k3 in wipScales) {
      let wsc = wipScales[k3];
      if (wsc.from != null) {
        let base = wipScales[wsc.from];
        if (base.min == null)
          wsc.min = wsc.max = null;
        else {
          let minMax = wsc.range(self, base.min, base.max, k3);
          wsc.min = minMax[0];
          wsc.max = minMax[1];
        }
      }
    }
    let changed = {};
    let anyChanged = false;
    for (let k3 in wipScales) {
      let wsc = wipScales[k3];
      let sc = scales[k3];
      if (sc.min != wsc.min || sc.max != wsc.max) {
        sc.min = wsc.min;
        sc.max = wsc.max;
        let distr = sc.distr;
        sc._min = distr == 3 ? log10(sc.min) : distr == 4 ? asinh(sc.min, sc.asinh) : distr == 100 ? sc.fwd(sc.min) : sc.min;
        sc._max = distr == 3 ? log10(sc.max) : distr == 4 ? asinh(sc.max, sc.asinh) : distr == 100 ? sc.fwd(sc.max) : sc.max;
        changed[k3] = anyChanged = true;
      }
    }
    if (anyChanged) {
      series.forEach((s3, i4) => {
        if (mode == 2) {
          if (i4 > 0 && changed.y)
            s3._paths = null;
        } else {
          if (changed[s3.scale])
            s3._paths = null;
        }
      });
      for (let k3 in changed) {
        shouldConvergeSize = true;
        fire("setScale", k3);
      }
      if (showCursor && cursor.left >= 0)
        shouldSetCursor = shouldSetLegend = true;
    }
    for (let k3 in pendScales)
      pendScales[k3] = null;
  }
  function getOuterIdxs(ydata) {
    let _i0 = clamp(i0 - 1, 0, dataLen - 1);
    let _i1 = clamp(i1 + 1, 0, dataLen - 1);
    while (ydata[_i0] == null && _i0 > 0)
      _i0--;
    while (ydata[_i1] == null && _i1 < dataLen - 1)
      _i1++;
    return [_i0, _i1];
  }
  function drawSeries() {
    if (dataLen > 0) {
      let shouldAlpha = series.some((s3) => s3._focus) && ctxAlpha != focus.alpha;
      if (shouldAlpha)
        ctx.globalAlpha = ctxAlpha = focus.alpha;
      series.forEach((s3, i4) => {
        if (i4 > 0 && s3.show) {
          cacheStrokeFill(i4, false);
          cacheStrokeFill(i4, true);
          if (s3._paths == null) {
            let _ctxAlpha = ctxAlpha;
            if (ctxAlpha != s3.alpha)
              ctx.globalAlpha = ctxAlpha = s3.alpha;
            let _idxs = mode == 2 ? [0, data[i4][0].length - 1] : getOuterIdxs(data[i4]);
            s3._paths = s3.paths(self, i4, _idxs[0], _idxs[1]);
            if (ctxAlpha != _ctxAlpha)
              ctx.globalAlpha = ctxAlpha = _ctxAlpha;
          }
        }
      });
      series.forEach((s3, i4) => {
        if (i4 > 0 && s3.show) {
          let _ctxAlpha = ctxAlpha;
          if (ctxAlpha != s3.alpha)
            ctx.globalAlpha = ctxAlpha = s3.alpha;
          s3._paths != null && drawPath(i4, false);
          {
            let _gaps = s3._paths != null ? s3._paths.gaps : null;
            let show = s3.points.show(self, i4, i0, i1, _gaps);
            let idxs2 = s3.points.filter(self, i4, show, _gaps);
            if (show || idxs2) {
              s3.points._paths = s3.points.paths(self, i4, i0, i1, idxs2);
              drawPath(i4, true);
            }
          }
          if (ctxAlpha != _ctxAlpha)
            ctx.globalAlpha = ctxAlpha = _ctxAlpha;
          fire("drawSeries", i4);
        }
      });
      if (shouldAlpha)
        ctx.globalAlpha = ctxAlpha = 1;
    }
  }
  function cacheStrokeFill(si, _points) {
    let s3 = _points ? series[si].points : series[si];
    s3._stroke = s3.stroke(self, si);
    s3._fill = s3.fill(self, si);
  }
  function drawPath(si, _points) {
    let s3 = _points ? series[si].points : series[si];
    let {
      stroke,
      fill: fill3,
      clip: gapsClip,
      flags,
      _stroke: strokeStyle = s3._stroke,
      _fill: fillStyle = s3._fill,
      _width: width = s3.width
    } = s3._paths;
    width = roundDec(width * pxRatio, 3);
    let boundsClip = null;
    let offset = width % 2 / 2;
    if (_points && fillStyle == null)
      fillStyle = width > 0 ? "#fff" : strokeStyle;
    let _pxAlign = s3.pxAlign == 1 && offset > 0;
    _pxAlign && ctx.translate(offset, offset);
    if (!_points) {
      let lft = plotLft - width / 2, top = plotTop - width / 2, wid = plotWid + width, hgt = plotHgt + width;
      boundsClip = new Path2D();
      boundsClip.rect(lft, top, wid, hgt);
    }
    if (_points)
      strokeFill(strokeStyle, width, s3.dash, s3.cap, fillStyle, stroke, fill3, flags, gapsClip);
    else
      fillStroke(si, strokeStyle, width, s3.dash, s3.cap, fillStyle, stroke, fill3, flags, boundsClip, gapsClip);
    _pxAlign && ctx.translate(-offset, -offset);
  }
  function fillStroke(si, strokeStyle, lineWidth, lineDash, lineCap, fillStyle, strokePath, fillPath, flags, boundsClip, gapsClip) {
    let didStrokeFill = false;
    flags != 0 && bands.forEach((b, bi) => {
      if (b.series[0] == si) {
        let lowerEdge = series[b.series[1]];
        let lowerData = data[b.series[1]];
        let bandClip = (lowerEdge._paths || EMPTY_OBJ).band;
        if (isArr(bandClip))
          bandClip = b.dir == 1 ? bandClip[0] : bandClip[1];
        let gapsClip2;
        let _fillStyle = null;
        if (lowerEdge.show && bandClip && hasData(lowerData, i0, i1)) {
          _fillStyle = b.fill(self, bi) || fillStyle;
          gapsClip2 = lowerEdge._paths.clip;
        } else
          bandClip = null;
        strokeFill(strokeStyle, lineWidth, lineDash, lineCap, _fillStyle, strokePath, fillPath, flags, boundsClip, gapsClip, gapsClip2, bandClip);
        didStrokeFill = true;
      }
    });
    if (!didStrokeFill)
      strokeFill(strokeStyle, lineWidth, lineDash, lineCap, fillStyle, strokePath, fillPath, flags, boundsClip, gapsClip);
  }
  const CLIP_FILL_STROKE = BAND_CLIP_FILL | BAND_CLIP_STROKE;
  function strokeFill(strokeStyle, lineWidth, lineDash, lineCap, fillStyle, strokePath, fillPath, flags, boundsClip, gapsClip, gapsClip2, bandClip) {
    setCtxStyle(strokeStyle, lineWidth, lineDash, lineCap, fillStyle);
    if (boundsClip || gapsClip || bandClip) {
      ctx.save();
      boundsClip && ctx.clip(boundsClip);
      gapsClip && ctx.clip(gapsClip);
    }
    if (bandClip) {
      if ((flags & CLIP_FILL_STROKE) == CLIP_FILL_STROKE) {
        ctx.clip(bandClip);
        gapsClip2 && ctx.clip(gapsClip2);
        doFill(fillStyle, fillPath);
        doStroke(strokeStyle, strokePath, lineWidth);
      } else if (flags & BAND_CLIP_STROKE) {
        doFill(fillStyle, fillPath);
        ctx.clip(bandClip);
        doStroke(strokeStyle, strokePath, lineWidth);
      } else if (flags & BAND_CLIP_FILL) {
        ctx.save();
        ctx.clip(bandClip);
        gapsClip2 && ctx.clip(gapsClip2);
        doFill(fillStyle, fillPath);
        ctx.restore();
        doStroke(strokeStyle, strokePath, lineWidth);
      }
    } else {
      doFill(fillStyle, fillPath);
      doStroke(strokeStyle, strokePath, lineWidth);
    }
    if (boundsClip || gapsClip || bandClip)
      ctx.restore();
  }
  function doStroke(strokeStyle, strokePath, lineWidth) {
    if (lineWidth > 0) {
      if (strokePath instanceof Map) {
        strokePath.forEach((strokePath2, strokeStyle2) => {
          ctx.strokeStyle = ctxStroke = strokeStyle2;
          ctx.stroke(strokePath2);
        });
      } else
        strokePath != null && strokeStyle && ctx.stroke(strokePath);
    }
  }
  function doFill(fillStyle, fillPath) {
    if (fillPath instanceof Map) {
      fillPath.forEach((fillPath2, fillStyle2) => {
        ctx.fillStyle = ctxFill = fillStyle2;
        ctx.fill(fillPath2);
      });
    } else
      fillPath != null && fillStyle && ctx.fill(fillPath);
  }
  function getIncrSpace(axisIdx, min2, max2, fullDim) {
    let axis = axes[axisIdx];
    let incrSpace;
    if (fullDim <= 0)
      incrSpace = [0, 0];
    else {
      let minSpace = axis._space = axis.space(self, axisIdx, min2, max2, fullDim);
      let incrs = axis._incrs = axis.incrs(self, axisIdx, min2, max2, fullDim, minSpace);
      incrSpace = findIncr(min2, max2, incrs, fullDim, minSpace);
    }
    return axis._found = incrSpace;
  }
  function drawOrthoLines(offs, filts, ori, side, pos0, len, width, stroke, dash, cap) {
    let offset = width % 2 / 2;
    pxAlign == 1 && ctx.translate(offset, offset);
    setCtxStyle(stroke, width, dash, cap, stroke);
    ctx.beginPath();
    let x0, y0, x1, y1, pos1 = pos0 + (side == 0 || side == 3 ? -len : len);
    if (ori == 0) {
      y0 = pos0;
      y1 = pos1;
    } else {
      x0 = pos0;
      x1 = pos1;
    }
    for (let i4 = 0; i4 < offs.length; i4++) {
      if (filts[i4] != null) {
        if (ori == 0)
          x0 = x1 = offs[i4];
        else
          y0 = y1 = offs[i4];
        ctx.moveTo(x0, y0);
        ctx.lineTo(x1, y1);
      }
    }
    ctx.stroke();
    pxAlign == 1 && ctx.translate(-offset, -offset);
  }
  function axesCalc(cycleNum) {
    let converged = true;
    axes.forEach((axis, i4) => {
      if (!axis.show)
        return;
      let scale = scales[axis.scale];
      if (scale.min == null) {
        if (axis._show) {
          converged = false;
          axis._show = false;
          resetYSeries(false);
        }
        return;
      } else {
        if (!axis._show) {
          converged = false;
          axis._show = true;
          resetYSeries(false);
        }
      }
      let side = axis.side;
      let ori = side % 2;
      let { min: min2, max: max2 } = scale;
      let [_incr, _space] = getIncrSpace(i4, min2, max2, ori == 0 ? plotWidCss : plotHgtCss);
      if (_space == 0)
        return;
      let forceMin = scale.distr == 2;
      let _splits = axis._splits = axis.splits(self, i4, min2, max2, _incr, _space, forceMin);
      let splits = scale.distr == 2 ? _splits.map((i5) => data0[i5]) : _splits;
      let incr = scale.distr == 2 ? data0[_splits[1]] - data0[_splits[0]] : _incr;
      let values = axis._values = axis.values(self, axis.filter(self, splits, i4, _space, incr), i4, _space, incr);
      axis._rotate = side == 2 ? axis.rotate(self, values, i4, _space) : 0;
      let oldSize = axis._size;
      axis._size = ceil(axis.size(self, values, i4, cycleNum));
      if (oldSize != null && axis._size != oldSize)
        converged = false;
    });
    return converged;
  }
  function paddingCalc(cycleNum) {
    let converged = true;
    padding.forEach((p3, i4) => {
      let _p = p3(self, i4, sidesWithAxes, cycleNum);
      if (_p != _padding[i4])
        converged = false;
      _padding[i4] = _p;
    });
    return converged;
  }
  function drawAxesGrid() {
    for (let i4 = 0; i4 < axes.length; i4++) {
      let axis = axes[i4];
      if (!axis.show || !axis._show)
        continue;
      let side = axis.side;
      let ori = side % 2;
      let x2, y3;
      let fillStyle = axis.stroke(self, i4);
      let shiftDir = side == 0 || side == 3 ? -1 : 1;
      let [_incr, _space] = axis._found;
      if (axis.label != null) {
        let shiftAmt2 = axis.labelGap * shiftDir;
        let baseLpos = round2((axis._lpos + shiftAmt2) * pxRatio);
        setFontStyle(axis.labelFont[0], fillStyle, "center", side == 2 ? TOP : BOTTOM);
        ctx.save();
        if (ori == 1) {
          x2 = y3 = 0;
          ctx.translate(
            baseLpos,
            round2(plotTop + plotHgt / 2)
          );
          ctx.rotate((side == 3 ? -PI : PI) / 2);
        } else {
          x2 = round2(plotLft + plotWid / 2);
          y3 = baseLpos;
        }
        let _label = isFn(axis.label) ? axis.label(self, i4, _incr, _space) : axis.label;
        ctx.fillText(_label, x2, y3);
        ctx.restore();
      }
      if (_space == 0)
        continue;
      let scale = scales[axis.scale];
      let plotDim = ori == 0 ? plotWid : plotHgt;
      let plotOff = ori == 0 ? plotLft : plotTop;
      let _splits = axis._splits;
      let splits = scale.distr == 2 ? _splits.map((i5) => data0[i5]) : _splits;
      let incr = scale.distr == 2 ? data0[_splits[1]] - data0[_splits[0]] : _incr;
      let ticks2 = axis.ticks;
      let border2 = axis.border;
      let _tickSize = ticks2.show ? ticks2.size : 0;
      let tickSize = round2(_tickSize * pxRatio);
      let axisGap = round2((axis.alignTo == 2 ? axis._size - _tickSize - axis.gap : axis.gap) * pxRatio);
      let angle = axis._rotate * -PI / 180;
      let basePos = pxRound(axis._pos * pxRatio);
      let shiftAmt = (tickSize + axisGap) * shiftDir;
      let finalPos = basePos + shiftAmt;
      y3 = ori == 0 ? finalPos : 0;
      x2 = ori == 1 ? finalPos : 0;
      let font2 = axis.font[0];
      let textAlign = axis.align == 1 ? LEFT : axis.align == 2 ? RIGHT : angle > 0 ? LEFT : angle < 0 ? RIGHT : ori == 0 ? "center" : side == 3 ? RIGHT : LEFT;
      let textBaseline = angle || ori == 1 ? "middle" : side == 2 ? TOP : BOTTOM;
      setFontStyle(font2, fillStyle, textAlign, textBaseline);
      let lineHeight = axis.font[1] * axis.lineGap;
      let canOffs = _splits.map((val) => pxRound(getPos(val, scale, plotDim, plotOff)));
      let _values = axis._values;
      for (let i5 = 0; i5 < _values.length; i5++) {
        let val = _values[i5];
        if (val != null) {
          if (ori == 0)
            x2 = canOffs[i5];
          else
            y3 = canOffs[i5];
          val = "" + val;
          let _parts = val.indexOf("\n") == -1 ? [val] : val.split(/\n/gm);
          for (let j3 = 0; j3 < _parts.length; j3++) {
            let text = _parts[j3];
            if (angle) {
              ctx.save();
              ctx.translate(x2, y3 + j3 * lineHeight);
              ctx.rotate(angle);
              ctx.fillText(text, 0, 0);
              ctx.restore();
            } else
              ctx.fillText(text, x2, y3 + j3 * lineHeight);
          }
        }
      }
      if (ticks2.show) {
        drawOrthoLines(
          canOffs,
          ticks2.filter(self, splits, i4, _space, incr),
          ori,
          side,
          basePos,
          tickSize,
          roundDec(ticks2.width * pxRatio, 3),
          ticks2.stroke(self, i4),
          ticks2.dash,
          ticks2.cap
        );
      }
      let grid2 = axis.grid;
      if (grid2.show) {
        drawOrthoLines(
          canOffs,
          grid2.filter(self, splits, i4, _space, incr),
          ori,
          ori == 0 ? 2 : 1,
          ori == 0 ? plotTop : plotLft,
          ori == 0 ? plotHgt : plotWid,
          roundDec(grid2.width * pxRatio, 3),
          grid2.stroke(self, i4),
          grid2.dash,
          grid2.cap
        );
      }
      if (border2.show) {
        drawOrthoLines(
          [basePos],
          [1],
          ori == 0 ? 1 : 0,
          ori == 0 ? 1 : 2,
          ori == 1 ? plotTop : plotLft,
          ori == 1 ? plotHgt : plotWid,
          roundDec(border2.width * pxRatio, 3),
          border2.stroke(self, i4),
          border2.dash,
          border2.cap
        );
      }
    }
    fire("drawAxes");
  }
  function resetYSeries(minMax) {
    series.forEach((s3, i4) => {
      if (i4 > 0) {
        s3._paths = null;
        if (minMax) {
          if (mode == 1) {
            s3.min = null;
            s3.max = null;
          } else {
            s3.facets.forEach((f4) => {
              f4.min = null;
              f4.max = null;
            });
          }
        }
      }
    });
  }
  let queuedCommit = false;
  let deferHooks = false;
  let hooksQueue = [];
  function flushHooks() {
    deferHooks = false;
    for (let i4 = 0; i4 < hooksQueue.length; i4++)
      fire(...hooksQueue[i4]);
    hooksQueue.length = 0;
  }
  function commit() {
    if (!queuedCommit) {
      microTask(_commit);
      queuedCommit = true;
    }
  }
  function batch(fn, _deferHooks = false) {
    queuedCommit = true;
    deferHooks = _deferHooks;
    fn(self);
    _commit();
    if (_deferHooks && hooksQueue.length > 0)
      queueMicrotask(flushHooks);
  }
  self.batch = batch;
  function _commit() {
    if (shouldSetScales) {
      setScales();
      shouldSetScales = false;
    }
    if (shouldConvergeSize) {
      convergeSize();
      shouldConvergeSize = false;
    }
    if (shouldSetSize) {
      setStylePx(under, LEFT, plotLftCss);
      setStylePx(under, TOP, plotTopCss);
      setStylePx(under, WIDTH, plotWidCss);
      setStylePx(under, HEIGHT, plotHgtCss);
      setStylePx(over, LEFT, plotLftCss);
      setStylePx(over, TOP, plotTopCss);
      setStylePx(over, WIDTH, plotWidCss);
      setStylePx(over, HEIGHT, plotHgtCss);
      setStylePx(wrap, WIDTH, fullWidCss);
      setStylePx(wrap, HEIGHT, fullHgtCss);
      can.width = round2(fullWidCss * pxRatio);
      can.height = round2(fullHgtCss * pxRatio);
      axes.forEach(({ _el, _show, _size, _pos, side }) => {
        if (_el != null) {
          if (_show) {
            let posOffset = side === 3 || side === 0 ? _size : 0;
            let isVt = side % 2 == 1;
            setStylePx(_el, isVt ? "left" : "top", _pos - posOffset);
            setStylePx(_el, isVt ? "width" : "height", _size);
            setStylePx(_el, isVt ? "top" : "left", isVt ? plotTopCss : plotLftCss);
            setStylePx(_el, isVt ? "height" : "width", isVt ? plotHgtCss : plotWidCss);
            remClass(_el, OFF);
          } else
            addClass(_el, OFF);
        }
      });
      ctxStroke = ctxFill = ctxWidth = ctxJoin = ctxCap = ctxFont = ctxAlign = ctxBaseline = ctxDash = null;
      ctxAlpha = 1;
      syncRect(true);
      if (plotLftCss != _plotLftCss || plotTopCss != _plotTopCss || plotWidCss != _plotWidCss || plotHgtCss != _plotHgtCss) {
        resetYSeries(false);
        let pctWid = plotWidCss / _plotWidCss;
        let pctHgt = plotHgtCss / _plotHgtCss;
        if (showCursor && !shouldSetCursor && cursor.left >= 0) {
          cursor.left *= pctWid;
          cursor.top *= pctHgt;
          vCursor && elTrans(vCursor, round2(cursor.left), 0, plotWidCss, plotHgtCss);
          hCursor && elTrans(hCursor, 0, round2(cursor.top), plotWidCss, plotHgtCss);
          for (let i4 = 0; i4 < cursorPts.length; i4++) {
            let pt = cursorPts[i4];
            if (pt != null) {
              cursorPtsLft[i4] *= pctWid;
              cursorPtsTop[i4] *= pctHgt;
              elTrans(pt, ceil(cursorPtsLft[i4]), ceil(cursorPtsTop[i4]), plotWidCss, plotHgtCss);
            }
          }
        }
        if (select.show && !shouldSetSelect && select.left >= 0 && select.width > 0) {
          select.left *= pctWid;
          select.width *= pctWid;
          select.top *= pctHgt;
          select.height *= pctHgt;
          for (let prop in _hideProps)
            setStylePx(selectDiv, prop, select[prop]);
        }
        _plotLftCss = plotLftCss;
        _plotTopCss = plotTopCss;
        _plotWidCss = plotWidCss;
        _plotHgtCss = plotHgtCss;
      }
      fire("setSize");
      shouldSetSize = false;
    }
    if (fullWidCss > 0 && fullHgtCss > 0) {
      ctx.clearRect(0, 0, can.width, can.height);
      fire("drawClear");
      drawOrder.forEach((fn) => fn());
      fire("draw");
    }
    if (select.show && shouldSetSelect) {
      setSelect(select);
      shouldSetSelect = false;
    }
    if (showCursor && shouldSetCursor) {
      updateCursor(null, true, false);
      shouldSetCursor = false;
    }
    if (legend.show && legend.live && shouldSetLegend) {
      setLegend();
      shouldSetLegend = false;
    }
    if (!ready) {
      ready = true;
      self.status = 1;
      fire("ready");
    }
    viaAutoScaleX = false;
    queuedCommit = false;
  }
  self.redraw = (rebuildPaths, recalcAxes) => {
    shouldConvergeSize = recalcAxes || false;
    if (rebuildPaths !== false)
      _setScale(xScaleKey, scaleX.min, scaleX.max);
    else
      commit();
  };
  function setScale(key2, opts2) {
    let sc = scales[key2];
    if (sc.from == null) {
      if (dataLen == 0) {
        let minMax = sc.range(self, opts2.min, opts2.max, key2);
        opts2.min = minMax[0];
        opts2.max = minMax[1];
      }
      if (opts2.min > opts2.max) {
        let _min = opts2.min;
        opts2.min = opts2.max;
        opts2.max = _min;
      }
      if (dataLen > 1 && opts2.min != null && opts2.max != null && opts2.max - opts2.min < 1e-16)
        return;
      if (key2 == xScaleKey) {
        if (sc.distr == 2 && dataLen > 0) {
          opts2.min = closestIdx(opts2.min, data[0]);
          opts2.max = closestIdx(opts2.max, data[0]);
          if (opts2.min == opts2.max)
            opts2.max++;
        }
      }
      pendScales[key2] = opts2;
      shouldSetScales = true;
      commit();
    }
  }
  self.setScale = setScale;
  let xCursor;
  let yCursor;
  let vCursor;
  let hCursor;
  let rawMouseLeft0;
  let rawMouseTop0;
  let mouseLeft0;
  let mouseTop0;
  let rawMouseLeft1;
  let rawMouseTop1;
  let mouseLeft1;
  let mouseTop1;
  let dragging = false;
  const drag = cursor.drag;
  let dragX = drag.x;
  let dragY = drag.y;
  if (showCursor) {
    if (cursor.x)
      xCursor = placeDiv(CURSOR_X, over);
    if (cursor.y)
      yCursor = placeDiv(CURSOR_Y, over);
    if (scaleX.ori == 0) {
      vCursor = xCursor;
      hCursor = yCursor;
    } else {
      vCursor = yCursor;
      hCursor = xCursor;
    }
    mouseLeft1 = cursor.left;
    mouseTop1 = cursor.top;
  }
  const select = self.select = assign({
    show: true,
    over: true,
    left: 0,
    width: 0,
    top: 0,
    height: 0
  }, opts.select);
  const selectDiv = select.show ? placeDiv(SELECT, select.over ? over : under) : null;
  function setSelect(opts2, _fire) {
    if (select.show) {
      for (let prop in opts2) {
        select[prop] = opts2[prop];
        if (prop in _hideProps)
          setStylePx(selectDiv, prop, opts2[prop]);
      }
      _fire !== false && fire("setSelect");
    }
  }
  self.setSelect = setSelect;
  function toggleDOM(i4) {
    let s3 = series[i4];
    if (s3.show)
      showLegend && remClass(legendRows[i4], OFF);
    else {
      showLegend && addClass(legendRows[i4], OFF);
      if (showCursor) {
        let pt = cursorOnePt ? cursorPts[0] : cursorPts[i4];
        pt != null && elTrans(pt, -10, -10, plotWidCss, plotHgtCss);
      }
    }
  }
  function _setScale(key2, min2, max2) {
    setScale(key2, { min: min2, max: max2 });
  }
  function setSeries(i4, opts2, _fire, _pub) {
    if (opts2.focus != null)
      setFocus(i4);
    if (opts2.show != null) {
      series.forEach((s3, si) => {
        if (si > 0 && (i4 == si || i4 == null)) {
          s3.show = opts2.show;
          toggleDOM(si);
          if (mode == 2) {
            _setScale(s3.facets[0].scale, null, null);
            _setScale(s3.facets[1].scale, null, null);
          } else
            _setScale(s3.scale, null, null);
          commit();
        }
      });
    }
    _fire !== false && fire("setSeries", i4, opts2);
    _pub && pubSync("setSeries", self, i4, opts2);
  }
  self.setSeries = setSeries;
  function setBand(bi, opts2) {
    assign(bands[bi], opts2);
  }
  function addBand(opts2, bi) {
    opts2.fill = fnOrSelf(opts2.fill || null);
    opts2.dir = ifNull(opts2.dir, -1);
    bi = bi == null ? bands.length : bi;
    bands.splice(bi, 0, opts2);
  }
  function delBand(bi) {
    if (bi == null)
      bands.length = 0;
    else
      bands.splice(bi, 1);
  }
  self.addBand = addBand;
  self.setBand = setBand;
  self.delBand = delBand;
  function setAlpha(i4, value) {
    series[i4].alpha = value;
    if (showCursor && cursorPts[i4] != null)
      cursorPts[i4].style.opacity = value;
    if (showLegend && legendRows[i4])
      legendRows[i4].style.opacity = value;
  }
  let closestDist;
  let closestSeries;
  let focusedSeries;
  const FOCUS_TRUE = { focus: true };
  function setFocus(i4) {
    if (i4 != focusedSeries) {
      let allFocused = i4 == null;
      let _setAlpha = focus.alpha != 1;
      series.forEach((s3, i22) => {
        if (mode == 1 || i22 > 0) {
          let isFocused = allFocused || i22 == 0 || i22 == i4;
          s3._focus = allFocused ? null : isFocused;
          _setAlpha && setAlpha(i22, isFocused ? 1 : focus.alpha);
        }
      });
      focusedSeries = i4;
      _setAlpha && commit();
    }
  }
  if (showLegend && cursorFocus) {
    onMouse(mouseleave, legendTable, (e3) => {
      if (cursor._lock)
        return;
      setCursorEvent(e3);
      if (focusedSeries != null)
        setSeries(null, FOCUS_TRUE, true, syncOpts.setSeries);
    });
  }
  function posToVal(pos, scale, can2) {
    let sc = scales[scale];
    if (can2)
      pos = pos / pxRatio - (sc.ori == 1 ? plotTopCss : plotLftCss);
    let dim = plotWidCss;
    if (sc.ori == 1) {
      dim = plotHgtCss;
      pos = dim - pos;
    }
    if (sc.dir == -1)
      pos = dim - pos;
    let _min = sc._min, _max = sc._max, pct = pos / dim;
    let sv = _min + (_max - _min) * pct;
    let distr = sc.distr;
    return distr == 3 ? pow(10, sv) : distr == 4 ? sinh(sv, sc.asinh) : distr == 100 ? sc.bwd(sv) : sv;
  }
  function closestIdxFromXpos(pos, can2) {
    let v3 = posToVal(pos, xScaleKey, can2);
    return closestIdx(v3, data[0], i0, i1);
  }
  self.valToIdx = (val) => closestIdx(val, data[0]);
  self.posToIdx = closestIdxFromXpos;
  self.posToVal = posToVal;
  self.valToPos = (val, scale, can2) => scales[scale].ori == 0 ? getHPos(
    val,
    scales[scale],
    can2 ? plotWid : plotWidCss,
    can2 ? plotLft : 0
  ) : getVPos(
    val,
    scales[scale],
    can2 ? plotHgt : plotHgtCss,
    can2 ? plotTop : 0
  );
  self.setCursor = (opts2, _fire, _pub) => {
    mouseLeft1 = opts2.left;
    mouseTop1 = opts2.top;
    updateCursor(null, _fire, _pub);
  };
  function setSelH(off2, dim) {
    setStylePx(selectDiv, LEFT, select.left = off2);
    setStylePx(selectDiv, WIDTH, select.width = dim);
  }
  function setSelV(off2, dim) {
    setStylePx(selectDiv, TOP, select.top = off2);
    setStylePx(selectDiv, HEIGHT, select.height = dim);
  }
  let setSelX = scaleX.ori == 0 ? setSelH : setSelV;
  let setSelY = scaleX.ori == 1 ? setSelH : setSelV;
  function syncLegend() {
    if (showLegend && legend.live) {
      for (let i4 = mode == 2 ? 1 : 0; i4 < series.length; i4++) {
        if (i4 == 0 && multiValLegend)
          continue;
        let vals = legend.values[i4];
        let j3 = 0;
        for (let k3 in vals)
          legendCells[i4][j3++].firstChild.nodeValue = vals[k3];
      }
    }
  }
  function setLegend(opts2, _fire) {
    if (opts2 != null) {
      if (opts2.idxs) {
        opts2.idxs.forEach((didx, sidx) => {
          activeIdxs[sidx] = didx;
        });
      } else if (!isUndef(opts2.idx))
        activeIdxs.fill(opts2.idx);
      legend.idx = activeIdxs[0];
    }
    if (showLegend && legend.live) {
      for (let sidx = 0; sidx < series.length; sidx++) {
        if (sidx > 0 || mode == 1 && !multiValLegend)
          setLegendValues(sidx, activeIdxs[sidx]);
      }
      syncLegend();
    }
    shouldSetLegend = false;
    _fire !== false && fire("setLegend");
  }
  self.setLegend = setLegend;
  function setLegendValues(sidx, idx) {
    let s3 = series[sidx];
    let src = sidx == 0 && xScaleDistr == 2 ? data0 : data[sidx];
    let val;
    if (multiValLegend)
      val = s3.values(self, sidx, idx) ?? NULL_LEGEND_VALUES;
    else {
      val = s3.value(self, idx == null ? null : src[idx], sidx, idx);
      val = val == null ? NULL_LEGEND_VALUES : { _: val };
    }
    legend.values[sidx] = val;
  }
  function updateCursor(src, _fire, _pub) {
    rawMouseLeft1 = mouseLeft1;
    rawMouseTop1 = mouseTop1;
    [mouseLeft1, mouseTop1] = cursor.move(self, mouseLeft1, mouseTop1);
    cursor.left = mouseLeft1;
    cursor.top = mouseTop1;
    if (showCursor) {
      vCursor && elTrans(vCursor, round2(mouseLeft1), 0, plotWidCss, plotHgtCss);
      hCursor && elTrans(hCursor, 0, round2(mouseTop1), plotWidCss, plotHgtCss);
    }
    let idx;
    let noDataInRange = i0 > i1;
    closestDist = inf;
    closestSeries = null;
    let xDim = scaleX.ori == 0 ? plotWidCss : plotHgtCss;
    let yDim = scaleX.ori == 1 ? plotWidCss : plotHgtCss;
    if (mouseLeft1 < 0 || dataLen == 0 || noDataInRange) {
      idx = cursor.idx = null;
      for (let i4 = 0; i4 < series.length; i4++) {
        let pt = cursorPts[i4];
        pt != null && elTrans(pt, -10, -10, plotWidCss, plotHgtCss);
      }
      if (cursorFocus)
        setSeries(null, FOCUS_TRUE, true, src == null && syncOpts.setSeries);
      if (legend.live) {
        activeIdxs.fill(idx);
        shouldSetLegend = true;
      }
    } else {
      let mouseXPos, valAtPosX, xPos;
      if (mode == 1) {
        mouseXPos = scaleX.ori == 0 ? mouseLeft1 : mouseTop1;
        valAtPosX = posToVal(mouseXPos, xScaleKey);
        idx = cursor.idx = closestIdx(valAtPosX, data[0], i0, i1);
        xPos = valToPosX(data[0][idx], scaleX, xDim, 0);
      }
      let _ptLft = -10;
      let _ptTop = -10;
      let _ptWid = 0;
      let _ptHgt = 0;
      let _centered = true;
      let _ptFill = "";
      let _ptStroke = "";
      for (let i4 = mode == 2 ? 1 : 0; i4 < series.length; i4++) {
        let s3 = series[i4];
        let idx1 = activeIdxs[i4];
        let yVal1 = idx1 == null ? null : mode == 1 ? data[i4][idx1] : data[i4][1][idx1];
        let idx2 = cursor.dataIdx(self, i4, idx, valAtPosX);
        let yVal2 = idx2 == null ? null : mode == 1 ? data[i4][idx2] : data[i4][1][idx2];
        shouldSetLegend = shouldSetLegend || yVal2 != yVal1 || idx2 != idx1;
        activeIdxs[i4] = idx2;
        if (i4 > 0 && s3.show) {
          let xPos2 = idx2 == null ? -10 : idx2 == idx ? xPos : valToPosX(mode == 1 ? data[0][idx2] : data[i4][0][idx2], scaleX, xDim, 0);
          let yPos = yVal2 == null ? -10 : valToPosY(yVal2, mode == 1 ? scales[s3.scale] : scales[s3.facets[1].scale], yDim, 0);
          if (cursorFocus && yVal2 != null) {
            let mouseYPos = scaleX.ori == 1 ? mouseLeft1 : mouseTop1;
            let dist = abs(focus.dist(self, i4, idx2, yPos, mouseYPos));
            if (dist < closestDist) {
              let bias = focus.bias;
              if (bias != 0) {
                let mouseYVal = posToVal(mouseYPos, s3.scale);
                let seriesYValSign = yVal2 >= 0 ? 1 : -1;
                let mouseYValSign = mouseYVal >= 0 ? 1 : -1;
                if (mouseYValSign == seriesYValSign && (mouseYValSign == 1 ? bias == 1 ? yVal2 >= mouseYVal : yVal2 <= mouseYVal : (
                  // >= 0
                  bias == 1 ? yVal2 <= mouseYVal : yVal2 >= mouseYVal
                ))) {
                  closestDist = dist;
                  closestSeries = i4;
                }
              } else {
                closestDist = dist;
                closestSeries = i4;
              }
            }
          }
          if (shouldSetLegend || cursorOnePt) {
            let hPos, vPos;
            if (scaleX.ori == 0) {
              hPos = xPos2;
              vPos = yPos;
            } else {
              hPos = yPos;
              vPos = xPos2;
            }
            let ptWid, ptHgt, ptLft, ptTop, ptStroke, ptFill, centered = true, getBBox = points3.bbox;
            if (getBBox != null) {
              centered = false;
              let bbox = getBBox(self, i4);
              ptLft = bbox.left;
              ptTop = bbox.top;
              ptWid = bbox.width;
              ptHgt = bbox.height;
            } else {
              ptLft = hPos;
              ptTop = vPos;
              ptWid = ptHgt = points3.size(self, i4);
            }
            ptFill = points3.fill(self, i4);
            ptStroke = points3.stroke(self, i4);
            if (cursorOnePt) {
              if (i4 == closestSeries && closestDist <= focus.prox) {
                _ptLft = ptLft;
                _ptTop = ptTop;
                _ptWid = ptWid;
                _ptHgt = ptHgt;
                _centered = centered;
                _ptFill = ptFill;
                _ptStroke = ptStroke;
              }
            } else {
              let pt = cursorPts[i4];
              if (pt != null) {
                cursorPtsLft[i4] = ptLft;
                cursorPtsTop[i4] = ptTop;
                elSize(pt, ptWid, ptHgt, centered);
                elColor(pt, ptFill, ptStroke);
                elTrans(pt, ceil(ptLft), ceil(ptTop), plotWidCss, plotHgtCss);
              }
            }
          }
        }
      }
      if (cursorOnePt) {
        let p3 = focus.prox;
        let focusChanged = focusedSeries == null ? closestDist <= p3 : closestDist > p3 || closestSeries != focusedSeries;
        if (shouldSetLegend || focusChanged) {
          let pt = cursorPts[0];
          if (pt != null) {
            cursorPtsLft[0] = _ptLft;
            cursorPtsTop[0] = _ptTop;
            elSize(pt, _ptWid, _ptHgt, _centered);
            elColor(pt, _ptFill, _ptStroke);
            elTrans(pt, ceil(_ptLft), ceil(_ptTop), plotWidCss, plotHgtCss);
          }
        }
      }
    }
    if (select.show && dragging) {
      if (src != null) {
        let [xKey, yKey] = syncOpts.scales;
        let [matchXKeys, matchYKeys] = syncOpts.match;
        let [xKeySrc, yKeySrc] = src.cursor.sync.scales;
        let sdrag = src.cursor.drag;
        dragX = sdrag._x;
        dragY = sdrag._y;
        if (dragX || dragY) {
          let { left, top, width, height } = src.select;
          let sori = src.scales[xKeySrc].ori;
          let sPosToVal = src.posToVal;
          let sOff, sDim, sc, a3, b;
          let matchingX = xKey != null && matchXKeys(xKey, xKeySrc);
          let matchingY = yKey != null && matchYKeys(yKey, yKeySrc);
          if (matchingX && dragX) {
            if (sori == 0) {
              sOff = left;
              sDim = width;
            } else {
              sOff = top;
              sDim = height;
            }
            sc = scales[xKey];
            a3 = valToPosX(sPosToVal(sOff, xKeySrc), sc, xDim, 0);
            b = valToPosX(sPosToVal(sOff + sDim, xKeySrc), sc, xDim, 0);
            setSelX(min(a3, b), abs(b - a3));
          } else
            setSelX(0, xDim);
          if (matchingY && dragY) {
            if (sori == 1) {
              sOff = left;
              sDim = width;
            } else {
              sOff = top;
              sDim = height;
            }
            sc = scales[yKey];
            a3 = valToPosY(sPosToVal(sOff, yKeySrc), sc, yDim, 0);
            b = valToPosY(sPosToVal(sOff + sDim, yKeySrc), sc, yDim, 0);
            setSelY(min(a3, b), abs(b - a3));
          } else
            setSelY(0, yDim);
        } else
          hideSelect();
      } else {
        let rawDX = abs(rawMouseLeft1 - rawMouseLeft0);
        let rawDY = abs(rawMouseTop1 - rawMouseTop0);
        if (scaleX.ori == 1) {
          let _rawDX = rawDX;
          rawDX = rawDY;
          rawDY = _rawDX;
        }
        dragX = drag.x && rawDX >= drag.dist;
        dragY = drag.y && rawDY >= drag.dist;
        let uni = drag.uni;
        if (uni != null) {
          if (dragX && dragY) {
            dragX = rawDX >= uni;
            dragY = rawDY >= uni;
            if (!dragX && !dragY) {
              if (rawDY > rawDX)
                dragY = true;
              else
                dragX = true;
            }
          }
        } else if (drag.x && drag.y && (dragX || dragY))
          dragX = dragY = true;
        let p0, p1;
        if (dragX) {
          if (scaleX.ori == 0) {
            p0 = mouseLeft0;
            p1 = mouseLeft1;
          } else {
            p0 = mouseTop0;
            p1 = mouseTop1;
          }
          setSelX(min(p0, p1), abs(p1 - p0));
          if (!dragY)
            setSelY(0, yDim);
        }
        if (dragY) {
          if (scaleX.ori == 1) {
            p0 = mouseLeft0;
            p1 = mouseLeft1;
          } else {
            p0 = mouseTop0;
            p1 = mouseTop1;
          }
          setSelY(min(p0, p1), abs(p1 - p0));
          if (!dragX)
            setSelX(0, xDim);
        }
        if (!dragX && !dragY) {
          setSelX(0, 0);
          setSelY(0, 0);
        }
      }
    }
    drag._x = dragX;
    drag._y = dragY;
    if (src == null) {
      if (_pub) {
        if (syncKey != null) {
          let [xSyncKey, ySyncKey] = syncOpts.scales;
          syncOpts.values[0] = xSyncKey != null ? posToVal(scaleX.ori == 0 ? mouseLeft1 : mouseTop1, xSyncKey) : null;
          syncOpts.values[1] = ySyncKey != null ? posToVal(scaleX.ori == 1 ? mouseLeft1 : mouseTop1, ySyncKey) : null;
        }
        pubSync(mousemove, self, mouseLeft1, mouseTop1, plotWidCss, plotHgtCss, idx);
      }
      if (cursorFocus) {
        let shouldPub = _pub && syncOpts.setSeries;
        let p3 = focus.prox;
        if (focusedSeries == null) {
          if (closestDist <= p3)
            setSeries(closestSeries, FOCUS_TRUE, true, shouldPub);
        } else {
          if (closestDist > p3)
            setSeries(null, FOCUS_TRUE, true, shouldPub);
          else if (closestSeries != focusedSeries)
            setSeries(closestSeries, FOCUS_TRUE, true, shouldPub);
        }
      }
    }
    if (shouldSetLegend) {
      legend.idx = idx;
      setLegend();
    }
    _fire !== false && fire("setCursor");
  }
  let rect2 = null;
  Object.defineProperty(self, "rect", {
    get() {
      if (rect2 == null)
        syncRect(false);
      return rect2;
    }
  });
  function syncRect(defer = false) {
    if (defer)
      rect2 = null;
    else {
      rect2 = over.getBoundingClientRect();
      fire("syncRect", rect2);
    }
  }
  function mouseMove(e3, src, _l, _t, _w, _h, _i) {
    if (cursor._lock)
      return;
    if (dragging && e3 != null && e3.movementX == 0 && e3.movementY == 0)
      return;
    cacheMouse(e3, src, _l, _t, _w, _h, _i, false, e3 != null);
    if (e3 != null)
      updateCursor(null, true, true);
    else
      updateCursor(src, true, false);
  }
  function cacheMouse(e3, src, _l, _t, _w, _h, _i, initial, snap) {
    if (rect2 == null)
      syncRect(false);
    setCursorEvent(e3);
    if (e3 != null) {
      _l = e3.clientX - rect2.left;
      _t = e3.clientY - rect2.top;
    } else {
      if (_l < 0 || _t < 0) {
        mouseLeft1 = -10;
        mouseTop1 = -10;
        return;
      }
      let [xKey, yKey] = syncOpts.scales;
      let syncOptsSrc = src.cursor.sync;
      let [xValSrc, yValSrc] = syncOptsSrc.values;
      let [xKeySrc, yKeySrc] = syncOptsSrc.scales;
      let [matchXKeys, matchYKeys] = syncOpts.match;
      let rotSrc = src.axes[0].side % 2 == 1;
      let xDim = scaleX.ori == 0 ? plotWidCss : plotHgtCss, yDim = scaleX.ori == 1 ? plotWidCss : plotHgtCss, _xDim = rotSrc ? _h : _w, _yDim = rotSrc ? _w : _h, _xPos = rotSrc ? _t : _l, _yPos = rotSrc ? _l : _t;
      if (xKeySrc != null)
        _l = matchXKeys(xKey, xKeySrc) ? getPos(xValSrc, scales[xKey], xDim, 0) : -10;
      else
        _l = xDim * (_xPos / _xDim);
      if (yKeySrc != null)
        _t = matchYKeys(yKey, yKeySrc) ? getPos(yValSrc, scales[yKey], yDim, 0) : -10;
      else
        _t = yDim * (_yPos / _yDim);
      if (scaleX.ori == 1) {
        let __l = _l;
        _l = _t;
        _t = __l;
      }
    }
    if (snap && (src == null || src.cursor.event.type == mousemove)) {
      if (_l <= 1 || _l >= plotWidCss - 1)
        _l = incrRound(_l, plotWidCss);
      if (_t <= 1 || _t >= plotHgtCss - 1)
        _t = incrRound(_t, plotHgtCss);
    }
    if (initial) {
      rawMouseLeft0 = _l;
      rawMouseTop0 = _t;
      [mouseLeft0, mouseTop0] = cursor.move(self, _l, _t);
    } else {
      mouseLeft1 = _l;
      mouseTop1 = _t;
    }
  }
  const _hideProps = {
    width: 0,
    height: 0,
    left: 0,
    top: 0
  };
  function hideSelect() {
    setSelect(_hideProps, false);
  }
  let downSelectLeft;
  let downSelectTop;
  let downSelectWidth;
  let downSelectHeight;
  function mouseDown(e3, src, _l, _t, _w, _h, _i) {
    dragging = true;
    dragX = dragY = drag._x = drag._y = false;
    cacheMouse(e3, src, _l, _t, _w, _h, _i, true, false);
    if (e3 != null) {
      onMouse(mouseup, doc, mouseUp, false);
      pubSync(mousedown, self, mouseLeft0, mouseTop0, plotWidCss, plotHgtCss, null);
    }
    let { left, top, width, height } = select;
    downSelectLeft = left;
    downSelectTop = top;
    downSelectWidth = width;
    downSelectHeight = height;
  }
  function mouseUp(e3, src, _l, _t, _w, _h, _i) {
    dragging = drag._x = drag._y = false;
    cacheMouse(e3, src, _l, _t, _w, _h, _i, false, true);
    let { left, top, width, height } = select;
    let hasSelect = width > 0 || height > 0;
    let chgSelect = downSelectLeft != left || downSelectTop != top || downSelectWidth != width || downSelectHeight != height;
    hasSelect && chgSelect && setSelect(select);
    if (drag.setScale && hasSelect && chgSelect) {
      let xOff = left, xDim = width, yOff = top, yDim = height;
      if (scaleX.ori == 1) {
        xOff = top, xDim = height, yOff = left, yDim = width;
      }
      if (dragX) {
        _setScale(
          xScaleKey,
          posToVal(xOff, xScaleKey),
          posToVal(xOff + xDim, xScaleKey)
        );
      }
      if (dragY) {
        for (let k3 in scales) {
          let sc = scales[k3];
          if (k3 != xScaleKey && sc.from == null && sc.min != inf) {
            _setScale(
              k3,
              posToVal(yOff + yDim, k3),
              posToVal(yOff, k3)
            );
          }
        }
      }
      hideSelect();
    } else if (cursor.lock) {
      cursor._lock = !cursor._lock;
      updateCursor(src, true, e3 != null);
    }
    if (e3 != null) {
      offMouse(mouseup, doc);
      pubSync(mouseup, self, mouseLeft1, mouseTop1, plotWidCss, plotHgtCss, null);
    }
  }
  function mouseLeave(e3, src, _l, _t, _w, _h, _i) {
    if (cursor._lock)
      return;
    setCursorEvent(e3);
    let _dragging = dragging;
    if (dragging) {
      let snapH = true;
      let snapV = true;
      let snapProx = 10;
      let dragH, dragV;
      if (scaleX.ori == 0) {
        dragH = dragX;
        dragV = dragY;
      } else {
        dragH = dragY;
        dragV = dragX;
      }
      if (dragH && dragV) {
        snapH = mouseLeft1 <= snapProx || mouseLeft1 >= plotWidCss - snapProx;
        snapV = mouseTop1 <= snapProx || mouseTop1 >= plotHgtCss - snapProx;
      }
      if (dragH && snapH)
        mouseLeft1 = mouseLeft1 < mouseLeft0 ? 0 : plotWidCss;
      if (dragV && snapV)
        mouseTop1 = mouseTop1 < mouseTop0 ? 0 : plotHgtCss;
      updateCursor(null, true, true);
      dragging = false;
    }
    mouseLeft1 = -10;
    mouseTop1 = -10;
    activeIdxs.fill(null);
    updateCursor(null, true, true);
    if (_dragging)
      dragging = _dragging;
  }
  function dblClick(e3, src, _l, _t, _w, _h, _i) {
    if (cursor._lock)
      return;
    setCursorEvent(e3);
    autoScaleX();
    hideSelect();
    if (e3 != null)
      pubSync(dblclick, self, mouseLeft1, mouseTop1, plotWidCss, plotHgtCss, null);
  }
  function syncPxRatio() {
    axes.forEach(syncFontSize);
    _setSize(self.width, self.height, true);
  }
  on(dppxchange, win, syncPxRatio);
  const events = {};
  events.mousedown = mouseDown;
  events.mousemove = mouseMove;
  events.mouseup = mouseUp;
  events.dblclick = dblClick;
  events["setSeries"] = (e3, src, idx, opts2) => {
    let seriesIdxMatcher2 = syncOpts.match[2];
    idx = seriesIdxMatcher2(self, src, idx);
    idx != -1 && setSeries(idx, opts2, true, false);
  };
  if (showCursor) {
    onMouse(mousedown, over, mouseDown);
    onMouse(mousemove, over, mouseMove);
    onMouse(mouseenter, over, (e3) => {
      setCursorEvent(e3);
      syncRect(false);
    });
    onMouse(mouseleave, over, mouseLeave);
    onMouse(dblclick, over, dblClick);
    cursorPlots.add(self);
    self.syncRect = syncRect;
  }
  const hooks = self.hooks = opts.hooks || {};
  function fire(evName, a1, a22) {
    if (deferHooks)
      hooksQueue.push([evName, a1, a22]);
    else {
      if (evName in hooks) {
        hooks[evName].forEach((fn) => {
          fn.call(null, self, a1, a22);
        });
      }
    }
  }
  (opts.plugins || []).forEach((p3) => {
    for (let evName in p3.hooks)
      hooks[evName] = (hooks[evName] || []).concat(p3.hooks[evName]);
  });
  const seriesIdxMatcher = (self2, src, srcSeriesIdx) => srcSeriesIdx;
  const syncOpts = assign({
    key: null,
    setSeries: false,
    filters: {
      pub: retTrue,
      sub: retTrue
    },
    scales: [xScaleKey, series[1] ? series[1].scale : null],
    match: [retEq, retEq, seriesIdxMatcher],
    values: [null, null]
  }, cursor.sync);
  if (syncOpts.match.length == 2)
    syncOpts.match.push(seriesIdxMatcher);
  cursor.sync = syncOpts;
  const syncKey = syncOpts.key;
  const sync = _sync(syncKey);
  function pubSync(type, src, x2, y3, w3, h3, i4) {
    if (syncOpts.filters.pub(type, src, x2, y3, w3, h3, i4))
      sync.pub(type, src, x2, y3, w3, h3, i4);
  }
  sync.sub(self);
  function pub(type, src, x2, y3, w3, h3, i4) {
    if (syncOpts.filters.sub(type, src, x2, y3, w3, h3, i4))
      events[type](null, src, x2, y3, w3, h3, i4);
  }
  self.pub = pub;
  function destroy() {
    sync.unsub(self);
    cursorPlots.delete(self);
    mouseListeners.clear();
    off(dppxchange, win, syncPxRatio);
    root.remove();
    legendTable?.remove();
    fire("destroy");
  }
  self.destroy = destroy;
  function _init() {
    fire("init", opts, data);
    setData(data || opts.data, false);
    if (pendScales[xScaleKey])
      setScale(xScaleKey, pendScales[xScaleKey]);
    else
      autoScaleX();
    shouldSetSelect = select.show && (select.width > 0 || select.height > 0);
    shouldSetCursor = shouldSetLegend = true;
    _setSize(opts.width, opts.height);
  }
  series.forEach(initSeries);
  axes.forEach(initAxis);
  if (then) {
    if (then instanceof HTMLElement) {
      then.appendChild(root);
      _init();
    } else
      then(self, _init);
  } else
    _init();
  return self;
}
uPlot.assign = assign;
uPlot.fmtNum = fmtNum;
uPlot.rangeNum = rangeNum;
uPlot.rangeLog = rangeLog;
uPlot.rangeAsinh = rangeAsinh;
uPlot.orient = orient;
uPlot.pxRatio = pxRatio;
{
  uPlot.join = join;
}
{
  uPlot.fmtDate = fmtDate;
  uPlot.tzDate = tzDate;
}
uPlot.sync = _sync;
{
  uPlot.addGap = addGap;
  uPlot.clipGaps = clipGaps;
  let paths = uPlot.paths = {
    points: points2
  };
  paths.linear = linear;
  paths.stepped = stepped;
  paths.bars = bars;
  paths.spline = monotoneCubic;
}

// src/plots.tsx
var LEFT2 = 72;
var RIGHT2 = 16;
var HEIGHT2 = 112;
var MAX_LEGEND = 16;
var keyOf = (each) => `${"signal" in each ? each.signal : each.number}${each.is_residual ? " residual" : ""}`;
var shadeOf = (signal) => signal.is_residual ? signal.of ?? signal.name : signal.name;
var numbersOf = (group) => new Set([group.main, ...group.predictions, ...group.uncertainties].map((each) => each.number));
var ROLE_ORDER = ["observation", "action", "reward", "terminated", "truncated", "prediction", "uncertainty", "residual", "other"];
function groupsOf(info) {
  const plots = info.signals.filter((each) => each.shows === "plot" && each.count > 0);
  const mains = new Map(plots.filter((each) => each.role !== "prediction" && each.role !== "uncertainty").map((each) => [each.name, each]));
  const taken = /* @__PURE__ */ new Set();
  const groups = [];
  for (const main of mains.values()) {
    const of = (role) => plots.filter((each) => each.role === role && each.of === main.name && each.shape.join() === main.shape.join());
    const group = { main, predictions: of("prediction"), uncertainties: of("uncertainty") };
    [main, ...group.predictions, ...group.uncertainties].forEach((each) => taken.add(each));
    groups.push(group);
  }
  for (const left of plots) if (!taken.has(left)) groups.push({ main: left, predictions: [], uncertainties: [] });
  for (const each of plots)
    if (each.has_residual) groups.push({ main: { ...each, name: `${each.name} − ${each.of}`, role: "residual", is_residual: true, dtype: "float64" }, predictions: [], uncertainties: [] });
  const place = (each) => {
    const moved = state.plotOrder.indexOf(each.main.name);
    return moved >= 0 ? moved - 1e3 : ROLE_ORDER.indexOf(each.main.role);
  };
  return groups.map((each, i4) => [each, i4]).sort(([a3, i4], [b, j3]) => place(a3) - place(b) || i4 - j3).map(([each]) => each);
}
var channelsOf = (signal) => Math.min(64, Math.max(1, signal.shape.reduce((a3, b) => a3 * b, 1)));
function channelName(signal, channel) {
  return signal.names?.[channel] ?? (channelsOf(signal) === 1 ? signal.name : String(channel));
}
async function pointsOf(info, signal, width, abort) {
  const base = BigInt(info.start_ns);
  const found = await getArrays(
    "points",
    {
      episode: info.id,
      signal: signal.number,
      residual: signal.is_residual ? 1 : void 0,
      base,
      width: Math.max(1, Math.round(width)),
      from: base + BigInt(Math.floor(clock.from)),
      to: base + BigInt(Math.ceil(clock.to))
    },
    abort
  );
  const values = found.arrays.values;
  return {
    times: found.arrays.times.data,
    values: values.data,
    channels: values.shape[0],
    exact: found.head.exact === true
  };
}
function column(points3, channel) {
  const count = points3.times.length;
  const out = new Array(count);
  for (let i4 = 0; i4 < count; i4++) {
    const value = points3.values[channel * count + i4];
    out[i4] = Number.isNaN(value) ? null : value;
  }
  return out;
}
var inSeconds = (times) => Array.from(times, (each) => each / 1e9);
function joined(group, found) {
  const tables2 = [];
  const main = found.get(group.main.number);
  const count = channelsOf(group.main);
  tables2.push([inSeconds(main.times), ...Array.from({ length: count }, (_4, c3) => column(main, c3))]);
  for (const prediction of group.predictions) {
    const points3 = found.get(prediction.number);
    tables2.push([inSeconds(points3.times), ...Array.from({ length: count }, (_4, c3) => column(points3, c3))]);
  }
  for (const [uncertainty, prediction] of bandsOf(group)) {
    const spread = found.get(uncertainty.number);
    const middle = found.get(prediction.number);
    const holds = heldAt(spread.times, middle.times);
    const edges = (sign2) => Array.from({ length: count }, (_4, c3) => {
      const by = column(spread, c3);
      return column(middle, c3).map((around, i4) => {
        const wide = by[holds[i4]] ?? null;
        return around === null || wide === null ? null : around + sign2 * wide;
      });
    });
    tables2.push([inSeconds(middle.times), ...edges(1), ...edges(-1)]);
  }
  return tables2.length === 1 ? tables2[0] : uPlot.join(tables2);
}
function heldAt(times, wanted) {
  const found = new Int32Array(wanted.length);
  let at2 = -1;
  for (let i4 = 0; i4 < wanted.length; i4++) {
    while (at2 + 1 < times.length && times[at2 + 1] <= wanted[i4]) at2++;
    found[i4] = at2;
  }
  return found;
}
function bandsOf(group) {
  return group.uncertainties.map((each) => [each, group.predictions.find((one) => one.model === each.model) ?? group.main]);
}
var charts = /* @__PURE__ */ new Map();
function extentOf(name, self, low2, high2) {
  const all = charts.get(name) ?? /* @__PURE__ */ new Map();
  all.set(self, low2 === null || high2 === null ? null : [low2, high2]);
  charts.set(name, all);
  const known = [...all.values()].filter((each) => each !== null);
  return known.length ? [Math.min(...known.map((each) => each[0])), Math.max(...known.map((each) => each[1]))] : [null, null];
}
function shareAxis(name, self) {
  for (const other of charts.get(name)?.keys() ?? []) if (other !== self) other.setData(other.data);
}
function rangeOf(signal, low2, high2) {
  if (low2 === null || high2 === null || signal.dtype === "bool") return [-0.1, 1.1];
  if (low2 === high2) return [low2 - (Math.abs(low2) / 2 || 1), low2 + (Math.abs(low2) / 2 || 1)];
  return uPlot.rangeNum(low2, high2, 0.1, true);
}
var isHeld = (signal) => /^(bool|u?int)/.test(signal.dtype);
function seriesOf(group, hidden, gapsNow) {
  const count = channelsOf(group.main);
  const series = [{}];
  const bands = [];
  const line = (of, c3, more) => ({
    show: !hidden.has(`${group.main.name}#${c3}`),
    stroke: colourOf(shadeOf(group.main), c3),
    width: 1.25,
    points: { show: false },
    gaps: (self, _series, _first, _last, found) => isHeld(group.main) ? found : [...found, ...cutsOf(self, gapsNow().filter((each) => each.signal === of.number))],
    ...isHeld(group.main) && { paths: uPlot.paths.stepped({ align: 1 }) },
    ...more
  });
  for (let c3 = 0; c3 < count; c3++) series.push(line(group.main, c3, {}));
  for (const each of group.predictions) for (let c3 = 0; c3 < count; c3++) series.push(line(each, c3, { dash: [5, 4] }));
  for (const [, around] of bandsOf(group)) {
    const start2 = series.length;
    for (const _side of [0, 1]) for (let c3 = 0; c3 < count; c3++) series.push(line(around, c3, { width: 0 }));
    for (let c3 = 0; c3 < count; c3++)
      bands.push({ series: [start2 + c3, start2 + count + c3], fill: `${colourOf(group.main.name, c3)}2e` });
  }
  return { series, bands };
}
function cutsOf(self, gaps2) {
  const place = (at2) => Math.round(self.valToPos(at2 / 1e9, "x", true));
  const [from, to] = [Math.max(clock.from, 0), clock.to];
  return gaps2.filter((each) => each.to > from && each.from < to).map((each) => [place(Math.max(each.from, from)), place(Math.min(each.to, to))]);
}
function Plot({ info, group, held, gaps: gaps2, onDragTo, onMoveBy }) {
  const model = useModel();
  const box = A2(null);
  const line = A2(null);
  const chart = A2(null);
  const latest = A2({ info, group, gaps: gaps2 });
  latest.current = { info, group, gaps: gaps2 };
  const reload = A2(() => void 0);
  const loaded = A2(null);
  const [failure, setFailure] = d2("");
  const [exact, setExact] = d2(true);
  const name = group.main.name;
  const folded = model.hidden.has(name);
  _2(() => {
    if (folded || !box.current) return;
    const text = getComputedStyle(document.documentElement);
    const dim = text.getPropertyValue("--dim").trim();
    const grid2 = text.getPropertyValue("--grid").trim();
    const host = box.current;
    delete host.dataset.points;
    const { series, bands } = seriesOf(group, state.hidden, () => latest.current.gaps);
    const axis = { stroke: dim, grid: { stroke: grid2, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const made = new uPlot(
      {
        width: host.clientWidth,
        height: HEIGHT2,
        series,
        bands,
        legend: { show: false },
        padding: [8, RIGHT2, 0, 0],
        scales: {
          x: { time: false, auto: false, range: () => [clock.from / 1e9, clock.to / 1e9] },
          y: { range: (self, low2, high2) => rangeOf(group.main, ...extentOf(name, self, low2, high2)) }
        },
        axes: [{ ...axis, size: 4, values: () => [] }, { ...axis, size: LEFT2, space: 20, values: (_4, ticks2) => ticks2.map((each) => short(each)), gap: 6 }],
        cursor: { show: true, x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
        hooks: {
          drawClear: [
            (self) => {
              self.ctx.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--gap").trim();
              const { gaps: gaps3, group: group2 } = latest.current;
              for (const [from, to] of cutsOf(self, gaps3.filter((each) => each.signal === group2.main.number))) self.ctx.fillRect(from, self.bbox.top, Math.max(1, to - from), self.bbox.height);
            }
          ],
          setSelect: [
            (self) => {
              if (self.select.width > 4)
                clock.show(self.posToVal(self.select.left, "x") * 1e9, self.posToVal(self.select.left + self.select.width, "x") * 1e9);
              self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            }
          ]
        }
      },
      [[], ...series.slice(1).map(() => [])],
      host
    );
    chart.current = made;
    const over = made.over;
    const detach = gestures(over, () => over.clientWidth);
    let abort = new AbortController();
    let timer = 0;
    let isBusy = false;
    let isStale = false;
    const load2 = async () => {
      abort.abort();
      abort = new AbortController();
      const mine = abort.signal;
      const { info: info2, group: group2 } = latest.current;
      loaded.current = info2;
      isBusy = true;
      try {
        const all = [group2.main, ...group2.predictions, ...group2.uncertainties];
        const parts = await Promise.all(all.map((each) => pointsOf(info2, each, host.clientWidth - LEFT2 - RIGHT2, mine)));
        if (mine.aborted) return;
        made.setData(joined(group2, new Map(all.map((each, i4) => [each.number, parts[i4]]))));
        shareAxis(name, made);
        host.dataset.points = String(parts.reduce((sum2, each) => sum2 + each.times.length, 0));
        setExact(parts.every((each) => each.exact));
        setFailure("");
      } catch (error) {
        if (error.name !== "AbortError") setFailure(error.message);
      }
      if (mine.aborted) return;
      isBusy = false;
      if (isStale) {
        isStale = false;
        void load2();
      }
    };
    reload.current = () => {
      if (isBusy) isStale = true;
      else void load2();
    };
    const zoomed = clock.onZoom(() => {
      made.redraw(false, true);
      made.setScale("x", { min: clock.from / 1e9, max: clock.to / 1e9 });
      clearTimeout(timer);
      timer = window.setTimeout(load2, 40);
    });
    const watch = new ResizeObserver(() => {
      placeCursor(line.current);
      if (host.clientWidth === made.width) return;
      made.setSize({ width: host.clientWidth, height: HEIGHT2 });
      void load2();
    });
    watch.observe(host);
    void load2();
    return () => {
      abort.abort();
      clearTimeout(timer);
      zoomed();
      detach();
      watch.disconnect();
      charts.get(name)?.delete(made);
      shareAxis(name, made);
      made.destroy();
      chart.current = null;
    };
  }, [info.id, keyOf(group.main), group.predictions.length, group.uncertainties.length, folded, model.isDark]);
  y2(() => {
    if (loaded.current !== info) reload.current();
  }, [info]);
  y2(() => {
    const { series } = seriesOf(group, model.hidden, () => []);
    series.forEach((each, i4) => {
      if (i4 > 0 && chart.current && chart.current.series[i4]?.show !== each.show) chart.current.setSeries(i4, { show: each.show });
    });
  }, [model.hidden]);
  y2(() => chart.current?.redraw(true), [JSON.stringify(gaps2)]);
  y2(() => {
    const move = () => placeCursor(line.current);
    const stops = [clock.onMove(move), clock.onZoom(move)];
    move();
    return () => stops.forEach((stop) => stop());
  }, [folded]);
  const now = held.get(keyOf(group.main));
  const count = channelsOf(group.main);
  return /* @__PURE__ */ u3(
    "section",
    {
      class: "plot",
      "data-testid": "plot",
      "data-signal": name,
      "data-episode": info.id,
      "aria-label": `Plot of ${name}`,
      onDragOver: (event) => event.preventDefault(),
      onDrop: (event) => onDragTo(event.dataTransfer?.getData("text/plain") ?? "", name),
      children: [
        /* @__PURE__ */ u3("header", { draggable: true, onDragStart: (event) => event.dataTransfer?.setData("text/plain", name), children: [
          /* @__PURE__ */ u3(
            "button",
            {
              class: "fold quiet",
              "aria-expanded": !folded,
              "aria-label": `${folded ? "Show" : "Hide"} ${name}`,
              title: "Alt with ↑ or ↓ moves the plot",
              onClick: () => toggle(name),
              onKeyDown: (event) => {
                if (!event.altKey || event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
                event.preventDefault();
                onMoveBy(name, event.key === "ArrowUp" ? -1 : 1);
              },
              children: folded ? "▸" : "▾"
            }
          ),
          /* @__PURE__ */ u3("strong", { children: name }),
          /* @__PURE__ */ u3("span", { class: "dim role", children: [
            group.main.role,
            group.predictions.length ? ` · ${group.predictions.map((each) => each.model ?? "model").join(", ")} dashed` : ""
          ] }),
          /* @__PURE__ */ u3("span", { class: "legend", children: [
            Array.from({ length: Math.min(count, MAX_LEGEND) }, (_4, c3) => /* @__PURE__ */ u3(
              "button",
              {
                class: `channel quiet${model.hidden.has(`${name}#${c3}`) ? " off" : ""}`,
                onClick: () => toggle(`${name}#${c3}`),
                "aria-pressed": !model.hidden.has(`${name}#${c3}`),
                title: "click to hide or show",
                children: [
                  /* @__PURE__ */ u3("i", { style: { background: colourOf(shadeOf(group.main), c3) } }),
                  count > 1 && channelName(group.main, c3),
                  " ",
                  /* @__PURE__ */ u3("b", { children: valueOf(now, c3) }),
                  group.predictions.map((each) => /* @__PURE__ */ u3("em", { class: "dim", title: `${each.name} at the cursor`, children: valueOf(held.get(keyOf(each)), c3) }, each.number))
                ]
              },
              c3
            )),
            count > MAX_LEGEND && /* @__PURE__ */ u3("span", { class: "dim", children: [
              "and ",
              count - MAX_LEGEND,
              " more"
            ] })
          ] }),
          /* @__PURE__ */ u3("span", { class: "age dim", "data-age": now?.age_ns, title: "how old the value is that holds at the cursor", children: now?.age_ns === void 0 ? "no value yet" : `age ${spoken(now.age_ns)}` }),
          !exact && /* @__PURE__ */ u3("span", { class: "dim", title: "every pixel shows the least and the greatest of its records", children: "min–max" })
        ] }),
        !folded && /* @__PURE__ */ u3("div", { class: "chart", ref: box, children: [
          group.main.units && /* @__PURE__ */ u3("span", { class: "unit dim", children: group.main.units }),
          /* @__PURE__ */ u3("div", { class: "cursor", ref: line }),
          failure && /* @__PURE__ */ u3("p", { class: "failure", children: failure })
        ] })
      ]
    }
  );
}
var valueOf = (held, channel) => held?.values ? short(held.values[channel] ?? Number.NaN) : "–";
function toggle(key) {
  const hidden = new Set(state.hidden);
  if (!hidden.delete(key)) hidden.add(key);
  set({ hidden });
}
function placeCursor(element) {
  const host = element?.parentElement;
  if (!element || !host) return;
  const share2 = (clock.at - clock.from) / (clock.to - clock.from);
  element.style.visibility = share2 < 0 || share2 > 1 ? "hidden" : "visible";
  element.style.transform = `translateX(${LEFT2 + share2 * (host.clientWidth - LEFT2 - RIGHT2)}px)`;
}
function gestures(over, width) {
  const timeAt = (x2) => clock.from + x2 / width() * (clock.to - clock.from);
  const wheel = (event) => {
    if (!event.deltaY || !(event.ctrlKey || event.shiftKey || event.altKey)) return;
    event.preventDefault();
    clock.zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.offsetX));
  };
  let start2 = null;
  let downAt = 0;
  const down = (event) => {
    downAt = event.clientX;
    if (!event.shiftKey) return;
    event.stopImmediatePropagation();
    start2 = { x: event.clientX, from: clock.from, to: clock.to };
  };
  const move = (event) => {
    if (!start2) return;
    const by = (start2.x - event.clientX) / width() * (start2.to - start2.from);
    clock.show(start2.from + by, start2.to + by);
  };
  const up = () => {
    start2 = null;
  };
  const click = (event) => {
    if (Math.abs(event.clientX - downAt) < 4 && !event.shiftKey) clock.go(timeAt(event.offsetX), false);
  };
  const twice = () => clock.show(0, clock.length);
  over.addEventListener("wheel", wheel, { passive: false });
  over.addEventListener("mousedown", down, { capture: true });
  window.addEventListener("mousemove", move);
  window.addEventListener("mouseup", up);
  over.addEventListener("click", click);
  over.addEventListener("dblclick", twice);
  return () => {
    window.removeEventListener("mousemove", move);
    window.removeEventListener("mouseup", up);
  };
}

// src/drawer.tsx
var TITLES = { statics: "Episode", stats: "Selection", history: "Edits", moments: "Moments" };
function Drawer() {
  const { drawer, dataset } = useModel();
  if (!drawer) return null;
  const tabs = Object.keys(TITLES).filter((each) => each !== "moments" || dataset?.has_moments);
  return /* @__PURE__ */ u3("aside", { class: "drawer", "aria-label": TITLES[drawer], children: [
    /* @__PURE__ */ u3("header", { children: [
      tabs.map((each) => /* @__PURE__ */ u3("button", { class: `tab quiet${each === drawer ? " chosen" : ""}`, "aria-pressed": each === drawer, onClick: () => set({ drawer: each }), children: TITLES[each] }, each)),
      /* @__PURE__ */ u3("span", { class: "space" }),
      /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "Close", onClick: () => set({ drawer: null }), children: "✕" })
    ] }),
    /* @__PURE__ */ u3("div", { class: "drawer-body", children: [
      drawer === "statics" && /* @__PURE__ */ u3(Statics, {}),
      drawer === "stats" && /* @__PURE__ */ u3(Statistics, {}),
      drawer === "history" && /* @__PURE__ */ u3(History, {}),
      drawer === "moments" && /* @__PURE__ */ u3(Moments, {})
    ] })
  ] });
}
function Moments() {
  const { momentsOf, dataset } = useModel();
  const [found, setFound] = d2(null);
  const [failure, setFailure] = d2("");
  y2(() => {
    if (!momentsOf) return;
    const abort = new AbortController();
    getJson("moments", momentsOf, abort.signal).then((answer) => {
      setFound(answer);
      setFailure("");
    }).catch((error) => {
      if (error.name === "AbortError") return;
      setFound(null);
      setFailure(`${error.message} ${error.hint ?? ""}`);
    });
    return () => abort.abort();
  }, [momentsOf]);
  const again = /* @__PURE__ */ u3("button", { onClick: momentsLikeThis, children: "Moments like the one at the cursor" });
  if (!momentsOf) return again;
  if (failure) return /* @__PURE__ */ u3(k, { children: [
    /* @__PURE__ */ u3("p", { class: "failure", children: failure }),
    again
  ] });
  if (!found) return /* @__PURE__ */ u3("p", { class: "dim", children: "Searching…" });
  return /* @__PURE__ */ u3(k, { children: [
    /* @__PURE__ */ u3("p", { class: "dim", children: [
      "Like",
      " ",
      /* @__PURE__ */ u3("button", { class: "link", onClick: () => goAt(momentsOf.episode, momentsOf.at), children: named(momentsOf.episode) }),
      ", by ",
      found.index,
      ":"
    ] }),
    /* @__PURE__ */ u3("ol", { class: "moments", children: found.moments.map((each) => /* @__PURE__ */ u3("li", { children: /* @__PURE__ */ u3(
      "button",
      {
        class: "moment quiet",
        "data-testid": "moment",
        "data-episode": each.episode,
        "data-at-ns": each.at_ns,
        title: "go there; with Shift beside this one",
        onClick: (event) => event.shiftKey ? set({ otherId: each.episode }) : goAt(each.episode, BigInt(each.at_ns)),
        children: [
          /* @__PURE__ */ u3(Thumbnail, { id: each.episode, at: each.at_ns, version: dataset?.generation ?? 0 }),
          /* @__PURE__ */ u3("span", { class: "row-text", children: [
            /* @__PURE__ */ u3("strong", { children: [
              named(each.episode),
              " · ",
              seconds(each.since_start_ns),
              " s"
            ] }),
            /* @__PURE__ */ u3("span", { class: "dim", children: [
              found.measure,
              " ",
              short(each.score, 4)
            ] })
          ] })
        ]
      }
    ) }, `${each.episode}@${each.at_ns}`)) }),
    !found.moments.length && /* @__PURE__ */ u3("p", { class: "dim", children: "Nothing else is in the index." }),
    again
  ] });
}
function shown(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}
function Statics() {
  const { dataset } = useModel();
  const info = open.info;
  if (!info) return /* @__PURE__ */ u3("p", { class: "dim", children: "No episode is open." });
  const refusal = dataset?.refusal;
  return /* @__PURE__ */ u3(k, { children: [
    /* @__PURE__ */ u3(
      "form",
      {
        class: "marks",
        onSubmit: (event) => {
          event.preventDefault();
          const data = new FormData(event.currentTarget);
          void mark(String(data.get("name")), String(data.get("value")));
        },
        children: [
          /* @__PURE__ */ u3("label", { children: [
            "Mark ",
            /* @__PURE__ */ u3("input", { name: "name", list: "mark-names", required: true, value: "task", disabled: Boolean(refusal) })
          ] }),
          /* @__PURE__ */ u3("datalist", { id: "mark-names", children: [
            /* @__PURE__ */ u3("option", { value: "task" }),
            /* @__PURE__ */ u3("option", { value: "notes" })
          ] }),
          /* @__PURE__ */ u3("label", { children: [
            "as ",
            /* @__PURE__ */ u3("input", { name: "value", required: true, placeholder: "pick the cube", disabled: Boolean(refusal) })
          ] }),
          /* @__PURE__ */ u3("button", { disabled: Boolean(refusal), title: refusal ?? "", children: "Save" })
        ]
      }
    ),
    refusal && /* @__PURE__ */ u3("p", { class: "dim", children: refusal }),
    /* @__PURE__ */ u3(Items, { title: "Static items", items: info.static }),
    (info.findings?.length ?? 0) > 0 && /* @__PURE__ */ u3("section", { children: [
      /* @__PURE__ */ u3("h3", { children: "Findings" }),
      /* @__PURE__ */ u3("ul", { class: "findings", children: info.findings.map((each, i4) => /* @__PURE__ */ u3("li", { children: [
        /* @__PURE__ */ u3("b", { class: each.severity, children: each.rule }),
        " ",
        each.signal,
        " ",
        each.message
      ] }, i4)) })
    ] }),
    /* @__PURE__ */ u3("section", { children: [
      /* @__PURE__ */ u3("h3", { children: "Signals" }),
      /* @__PURE__ */ u3("table", { class: "signals", children: [
        /* @__PURE__ */ u3("thead", { children: /* @__PURE__ */ u3("tr", { children: [
          /* @__PURE__ */ u3("th", { scope: "col", children: "name" }),
          /* @__PURE__ */ u3("th", { scope: "col", children: "records" }),
          /* @__PURE__ */ u3("th", { scope: "col", children: "rate" })
        ] }) }),
        /* @__PURE__ */ u3("tbody", { children: info.signals.map((each) => /* @__PURE__ */ u3("tr", { children: [
          /* @__PURE__ */ u3("th", { scope: "row", children: [
            each.name,
            /* @__PURE__ */ u3("span", { class: "dim", children: [
              each.dtype === "object" ? each.kind : `${each.dtype}${each.shape.length ? `[${each.shape.join("×")}]` : ""}`,
              each.units ? `, ${each.units}` : ""
            ] })
          ] }),
          /* @__PURE__ */ u3("td", { children: each.count.toLocaleString("en") }),
          /* @__PURE__ */ u3("td", { children: each.rate_hz ? `${short(Number(each.rate_hz.toFixed(2)))} Hz` : "" })
        ] }, each.name)) })
      ] })
    ] }),
    /* @__PURE__ */ u3(Items, { title: "Metadata", items: info.meta })
  ] });
}
function Items({ title, items }) {
  const names = Object.keys(items);
  if (!names.length) return null;
  return /* @__PURE__ */ u3("section", { children: [
    /* @__PURE__ */ u3("h3", { children: title }),
    /* @__PURE__ */ u3("dl", { class: "items", children: names.map((name) => /* @__PURE__ */ u3("div", { children: [
      /* @__PURE__ */ u3("dt", { children: name }),
      /* @__PURE__ */ u3("dd", { children: shown(items[name]) })
    ] }, name)) })
  ] });
}
var quoted = (text) => `'${text.replaceAll("'", "''")}'`;
function narrow(condition2) {
  set({ where: state.where ? `(${state.where}) and ${condition2}` : condition2 });
}
function Statistics() {
  const { where, listGeneration, checks } = useModel();
  const [found, setFound] = d2(null);
  y2(() => {
    const abort = new AbortController();
    getJson("statistics", { where }, abort.signal).then(setFound).catch(complain);
    return () => abort.abort();
  }, [where, listGeneration]);
  if (!found) return null;
  const outliers = Object.entries(found.outliers);
  const plotted = (open.info?.signals ?? []).filter((each) => each.shows === "plot" && each.count > 0).sort((a3, b) => placeOf(a3) - placeOf(b));
  return /* @__PURE__ */ u3(k, { children: [
    /* @__PURE__ */ u3("p", { children: [
      /* @__PURE__ */ u3("b", { children: found.episodes.toLocaleString("en") }),
      " episodes",
      where ? " satisfy the filter" : "",
      "."
    ] }),
    Object.entries(found.measures).map(([name, each]) => /* @__PURE__ */ u3(Histogram, { name, ...each }, name)),
    /* @__PURE__ */ u3(Counts, { title: "success", items: found.success, condition: (value) => value === null ? "success is null" : value ? "success" : "not success" }),
    /* @__PURE__ */ u3(Counts, { title: "task", items: found.task, condition: (value) => value === null ? "task is null" : `task = ${quoted(String(value))}` }),
    /* @__PURE__ */ u3("section", { children: [
      /* @__PURE__ */ u3("h3", { children: "Outliers" }),
      outliers.length ? /* @__PURE__ */ u3("ul", { class: "outliers", children: outliers.slice(0, 50).map(([id, why]) => /* @__PURE__ */ u3("li", { children: [
        /* @__PURE__ */ u3("button", { class: "quiet", onClick: () => goTo(id), children: named(id) }),
        " ",
        /* @__PURE__ */ u3("span", { class: "dim", children: why.join(", ") })
      ] }, id)) }) : /* @__PURE__ */ u3("p", { class: "dim", children: "None by length, duration or return." })
    ] }),
    /* @__PURE__ */ u3("section", { children: [
      /* @__PURE__ */ u3("h3", { children: "Values" }),
      plotted.map((each) => /* @__PURE__ */ u3(Distribution, { signal: each, where, turn: listGeneration }, each.name)),
      !plotted.length && /* @__PURE__ */ u3("p", { class: "dim", children: "No signals of numbers in the open episode." })
    ] }),
    /* @__PURE__ */ u3("section", { children: [
      /* @__PURE__ */ u3("h3", { children: "Health" }),
      /* @__PURE__ */ u3("p", { class: "dim", children: checks ? `${checks.checked} of ${checks.total} checked, ${Object.keys(checks.worst).length} with findings` : "" }),
      Boolean(checks?.usual.length) && /* @__PURE__ */ u3("p", { class: "dim", children: [
        "In every episode: ",
        checks.usual.join(", ")
      ] }),
      checks && !checks.wanted && /* @__PURE__ */ u3("button", { onClick: () => void post("check", {}).catch(complain), children: "Check all" })
    ] })
  ] });
}
var placeOf = (signal) => ["observation", "action"].indexOf(signal.role) >>> 0;
function Distribution({ signal, where, turn: turn2 }) {
  const { dataset } = useModel();
  const [isOpen, setOpen] = d2(dataset?.is_here === true && placeOf(signal) < 2);
  const [found, setFound] = d2(null);
  const [failure, setFailure] = d2("");
  y2(() => {
    if (!isOpen) return;
    const abort = new AbortController();
    getJson("distribution", { where, signal: signal.name }, abort.signal).then((answer) => {
      setFound(answer);
      setFailure("");
    }).catch((error) => error.name !== "AbortError" && setFailure(error.message));
    return () => abort.abort();
  }, [isOpen, where, turn2, signal.name]);
  const from = found && `${found.records.toLocaleString("en")} records of ${found.episodes} episodes${siteName() && where ? ", filtered or not" : ""}${found.unreadable ? `; ${found.unreadable} cannot be read` : ""}`;
  return /* @__PURE__ */ u3("details", { class: "distribution", "data-testid": "distribution", "data-signal": signal.name, open: isOpen, onToggle: (event) => setOpen(event.currentTarget.open), children: [
    /* @__PURE__ */ u3("summary", { children: [
      signal.name,
      " ",
      /* @__PURE__ */ u3("span", { class: "dim", children: [
        signal.role,
        signal.units ? `, ${signal.units}` : ""
      ] })
    ] }),
    failure && /* @__PURE__ */ u3("p", { class: "failure", children: failure }),
    found?.channels.map((each, channel) => /* @__PURE__ */ u3("div", { class: "spread", "data-mean": each?.mean, children: [
      /* @__PURE__ */ u3("span", { class: "cut", title: channelName(signal, channel), children: found.channels.length > 1 ? channelName(signal, channel) : "" }),
      each ? /* @__PURE__ */ u3(k, { children: [
        /* @__PURE__ */ u3("span", { class: "dim", children: short(each.low, 3) }),
        /* @__PURE__ */ u3(Bars, { measure: each, colour: colourOf(signal.name, channel), label: `${channelName(signal, channel)} from ${short(each.low)} to ${short(each.high)}, mean ${short(each.mean)}` }),
        /* @__PURE__ */ u3("span", { class: "dim", children: short(each.high, 3) })
      ] }) : /* @__PURE__ */ u3("span", { class: "dim", children: "no numbers" })
    ] }, channel)),
    from && /* @__PURE__ */ u3("p", { class: "dim", children: from })
  ] });
}
function Bars({ measure, colour, label }) {
  const { counts, low: low2, high: high2, mean } = measure;
  const most = Math.max(...counts);
  const width = 120 / counts.length;
  const at2 = high2 > low2 ? (mean - low2) / (high2 - low2) * 120 : 60;
  return /* @__PURE__ */ u3("svg", { viewBox: "0 0 120 20", preserveAspectRatio: "none", role: "img", "aria-label": label, children: [
    /* @__PURE__ */ u3("title", { children: label }),
    counts.map((count, i4) => /* @__PURE__ */ u3("rect", { x: i4 * width, width: Math.max(0.5, width - 0.5), y: 20 - 20 * count / most, height: 20 * count / most, fill: colour }, i4)),
    /* @__PURE__ */ u3("rect", { class: "mean", x: at2 - 0.5, width: 1, y: 0, height: 20 })
  ] });
}
function Histogram({ name, counts, low: low2, high: high2, mean }) {
  const most = Math.max(...counts);
  const width = 240 / counts.length;
  const edge = (i4) => low2 + (high2 - low2) * i4 / counts.length;
  const choose = (i4, event) => {
    event.preventDefault();
    event.stopPropagation();
    narrow(`${name} >= ${edge(i4)} and ${name} ${i4 === counts.length - 1 ? "<=" : "<"} ${edge(i4 + 1)}`);
  };
  return /* @__PURE__ */ u3("section", { children: [
    /* @__PURE__ */ u3("h3", { children: [
      name,
      " ",
      /* @__PURE__ */ u3("span", { class: "dim", children: [
        "mean ",
        short(mean)
      ] })
    ] }),
    /* @__PURE__ */ u3("svg", { class: "histogram", viewBox: "0 0 240 48", preserveAspectRatio: "none", role: "group", "aria-label": `Histogram of ${name} from ${short(low2)} to ${short(high2)}`, children: counts.map((count, i4) => /* @__PURE__ */ u3(
      "rect",
      {
        role: "button",
        tabindex: count ? 0 : -1,
        "aria-label": `${short(edge(i4))} to ${short(edge(i4 + 1))}: ${count}`,
        onKeyDown: (event) => (event.key === "Enter" || event.key === " ") && choose(i4, event),
        x: i4 * width,
        width: Math.max(1, width - 1),
        y: 48 - 46 * count / most,
        height: 46 * count / most,
        onClick: (event) => choose(i4, event),
        children: /* @__PURE__ */ u3("title", { children: `${short(edge(i4))} to ${short(edge(i4 + 1))}: ${count}; click to filter` })
      },
      i4
    )) }),
    /* @__PURE__ */ u3("p", { class: "axis dim", children: [
      /* @__PURE__ */ u3("span", { children: short(low2) }),
      /* @__PURE__ */ u3("span", { children: short(high2) })
    ] })
  ] });
}
function Counts({ title, items, condition: condition2 }) {
  if (!items.length) return null;
  const all = items.reduce((sum2, each) => sum2 + each.count, 0);
  return /* @__PURE__ */ u3("section", { children: [
    /* @__PURE__ */ u3("h3", { children: title }),
    items.map((each) => /* @__PURE__ */ u3("button", { class: "count quiet", onClick: () => narrow(condition2(each.value)), title: "click to filter", children: [
      /* @__PURE__ */ u3("i", { style: { width: `${100 * each.count / all}%` } }),
      /* @__PURE__ */ u3("span", { class: "cut", children: each.value === null ? "not known" : String(each.value) }),
      /* @__PURE__ */ u3("b", { children: each.count })
    ] }, String(each.value)))
  ] });
}
var MOST_DROPPED = 200;
function History() {
  const { dataset, listGeneration } = useModel();
  const [{ edits, dropped }, setFound] = d2({ edits: [], dropped: [] });
  y2(() => {
    getJson("history", {}).then(setFound).catch(complain);
  }, [listGeneration]);
  return /* @__PURE__ */ u3(k, { children: [
    dataset?.refusal && /* @__PURE__ */ u3("p", { class: "dim", children: dataset.refusal }),
    dataset?.draft && /* @__PURE__ */ u3("p", { class: "dim", children: [
      "Edits of a published dataset are kept in ",
      dataset.draft,
      "; `warp publish --draft` takes them."
    ] }),
    /* @__PURE__ */ u3("p", { class: "buttons", children: [
      /* @__PURE__ */ u3("button", { disabled: Boolean(dataset?.refusal), onClick: () => void undo(), children: "Undo" }),
      /* @__PURE__ */ u3("button", { disabled: Boolean(dataset?.refusal), onClick: () => void redo(), children: "Redo" })
    ] }),
    dropped.length > 0 && /* @__PURE__ */ u3("section", { children: [
      /* @__PURE__ */ u3("h3", { children: "Dropped" }),
      /* @__PURE__ */ u3("ul", { class: "edits", children: dropped.slice(0, MOST_DROPPED).map((id) => /* @__PURE__ */ u3("li", { children: [
        /* @__PURE__ */ u3("span", { class: "cut", title: id, children: named(id) }),
        /* @__PURE__ */ u3("button", { class: "quiet", "data-testid": "undrop", disabled: Boolean(dataset?.refusal), onClick: () => void undrop(id), children: "bring back" })
      ] }, id)) }),
      dropped.length > MOST_DROPPED && /* @__PURE__ */ u3("p", { class: "dim", children: [
        "and ",
        dropped.length - MOST_DROPPED,
        " more"
      ] })
    ] }),
    edits.length > 0 && /* @__PURE__ */ u3("h3", { children: "Log" }),
    /* @__PURE__ */ u3("ol", { class: "edits", reversed: true, children: edits.map((each) => /* @__PURE__ */ u3("li", { class: each.is_undone ? "undone" : "", children: [
      /* @__PURE__ */ u3("span", { children: [
        /* @__PURE__ */ u3("b", { children: each.seq }),
        " ",
        said(each)
      ] }),
      each.op !== "undo" && !each.is_undone && /* @__PURE__ */ u3("button", { class: "quiet", disabled: Boolean(dataset?.refusal), onClick: () => void edit({ op: "undo", seq: each.seq }, `edit ${each.seq} is undone`), children: "undo" })
    ] }, each.seq)) }),
    !edits.length && /* @__PURE__ */ u3("p", { class: "dim", children: "Nothing was edited." })
  ] });
}
function said(edit2) {
  if (edit2.op === "undo") return `undo of ${edit2.undoes}`;
  const which = named(edit2.episode ?? edit2.episodes?.join(" + ") ?? "");
  const what = edit2.op === "set_static" ? `${edit2.name} = ${shown(edit2.value)}` : edit2.op;
  return `${which}: ${what}${edit2.redoes ? " (again)" : ""}`;
}

// src/ruler.tsx
var HEIGHT3 = 48;
function tickStep(span, width) {
  const wanted = span / Math.max(2, Math.min(12, width / 72));
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= wanted);
}
function joined2(gaps2) {
  const found = [];
  for (const { from, to } of [...gaps2].sort((a3, b) => a3.from - b.from)) {
    const last = found.at(-1);
    if (last && from <= last.to) last.to = Math.max(last.to, to);
    else found.push({ from, to });
  }
  return found;
}
function Ruler({ marks, findings, trim: trim2 }) {
  const model = useModel();
  const host = A2(null);
  const canvas = A2(null);
  const cursor = A2(null);
  const label = A2(null);
  const overview = A2(null);
  const [, again] = d2(0);
  const xOf = (at2) => {
    const width = host.current.clientWidth - LEFT2 - RIGHT2;
    return LEFT2 + (at2 - clock.from) / (clock.to - clock.from) * width;
  };
  const timeOf = (x2) => {
    const width = host.current.clientWidth - LEFT2 - RIGHT2;
    return clock.from + (x2 - LEFT2) / width * (clock.to - clock.from);
  };
  function draw() {
    const target = canvas.current;
    if (!target || !host.current) return;
    const scale = devicePixelRatio || 1;
    const width = host.current.clientWidth;
    target.width = width * scale;
    target.height = HEIGHT3 * scale;
    const paint = target.getContext("2d");
    paint.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    paint.clearRect(0, 0, width, HEIGHT3);
    paint.save();
    paint.beginPath();
    paint.rect(LEFT2, 16, width - LEFT2, HEIGHT3);
    paint.rect(0, 0, width, 16);
    paint.clip();
    paint.fillStyle = colour("--gap");
    for (const gap of joined2(marks.gaps)) paint.fillRect(xOf(gap.from), 18, Math.max(1, xOf(gap.to) - xOf(gap.from)), HEIGHT3 - 18);
    if (trim2) {
      paint.fillStyle = colour("--trimmed");
      paint.fillRect(LEFT2, 18, xOf(trim2.from) - LEFT2, HEIGHT3 - 18);
      paint.fillRect(xOf(trim2.to), 18, width - xOf(trim2.to), HEIGHT3 - 18);
    }
    paint.strokeStyle = colour("--grid");
    paint.fillStyle = colour("--dim");
    paint.font = "11px system-ui, sans-serif";
    paint.textAlign = "center";
    const step2 = tickStep((clock.to - clock.from) / 1e9, width - LEFT2 - RIGHT2) * 1e9;
    const digits = Math.max(0, Math.ceil(-Math.log10(step2 / 1e9)));
    for (let at2 = Math.ceil(clock.from / step2) * step2; at2 <= clock.to; at2 += step2) {
      const x2 = Math.round(xOf(at2)) + 0.5;
      paint.beginPath();
      paint.moveTo(x2, 16);
      paint.lineTo(x2, HEIGHT3);
      paint.stroke();
      paint.textAlign = x2 > width - 24 ? "right" : "center";
      paint.fillText(`${seconds(at2, digits)} s`, Math.min(x2, width - 2), 12);
    }
    paint.fillStyle = colour("--event");
    let until = -1;
    paint.textAlign = "left";
    for (const event of marks.events) {
      const x2 = xOf(event.at);
      if (x2 < LEFT2 - 200 || x2 > width) continue;
      paint.fillRect(x2 - 1, 20, 2, HEIGHT3 - 20);
      if (x2 > until) {
        const text = event.text.length > 28 ? `${event.text.slice(0, 27)}…` : event.text;
        paint.fillText(text, x2 + 4, 32);
        until = x2 + paint.measureText(text).width + 12;
      }
    }
    paint.fillStyle = colour("--warn");
    for (const finding of findings) {
      const at2 = finding.details.at_ns;
      if (typeof at2 !== "number" && typeof at2 !== "string") continue;
      const x2 = xOf(Number(BigInt(at2) - clock.base));
      paint.beginPath();
      paint.moveTo(x2 - 5, HEIGHT3);
      paint.lineTo(x2 + 5, HEIGHT3);
      paint.lineTo(x2, HEIGHT3 - 9);
      paint.fill();
    }
    paint.restore();
  }
  function move() {
    placeCursor(cursor.current);
    if (label.current) label.current.textContent = `${seconds(clock.at)} s`;
    cursor.current?.setAttribute("aria-valuenow", String(Math.round(clock.at / 1e6)));
    cursor.current?.setAttribute("aria-valuetext", `${seconds(clock.at)} seconds`);
    cursor.current?.setAttribute("data-time-ns", clock.time.toString());
    const bar = overview.current;
    if (bar) {
      const view = bar.firstElementChild;
      view.style.left = `${clock.from / clock.length * 100}%`;
      view.style.width = `${(clock.to - clock.from) / clock.length * 100}%`;
      bar.lastElementChild.style.left = `${clock.at / clock.length * 100}%`;
    }
  }
  y2(() => {
    const all = () => {
      draw();
      move();
      again((n2) => n2 + 1);
    };
    const stops = [clock.onMove(move), clock.onZoom(all)];
    const watch = new ResizeObserver(all);
    watch.observe(host.current);
    all();
    return () => {
      stops.forEach((stop) => stop());
      watch.disconnect();
    };
  }, [marks, findings, trim2, model.isDark]);
  function scrub(event) {
    const target = event.currentTarget;
    if (event.target.dataset.handle) return;
    target.setPointerCapture(event.pointerId);
    const to = (each) => clock.go(timeOf(each.clientX - target.getBoundingClientRect().left), false);
    to(event);
    const kind = "onpointerrawupdate" in target ? "pointerrawupdate" : "pointermove";
    target.addEventListener(kind, to);
    target.onpointerup = target.onpointercancel = () => {
      target.removeEventListener(kind, to);
      target.onpointerup = target.onpointercancel = null;
    };
  }
  function drag(event, side) {
    event.stopPropagation();
    const handle = event.currentTarget;
    handle.setPointerCapture(event.pointerId);
    const left = host.current.getBoundingClientRect().left;
    handle.onpointermove = (each) => {
      const at2 = Math.min(Math.max(timeOf(each.clientX - left), 0), clock.length);
      const now = open.trim ?? { from: 0, to: clock.length };
      const next = { ...now, [side]: at2 };
      if (next.from < next.to) open.setTrim(next);
      clock.go(at2, false);
    };
    handle.onpointerup = () => {
      handle.onpointermove = handle.onpointerup = null;
    };
  }
  function brush(event) {
    const bar = event.currentTarget;
    bar.setPointerCapture(event.pointerId);
    const box = bar.getBoundingClientRect();
    const to = (each) => {
      const at2 = (each.clientX - box.left) / box.width * clock.length;
      const half = (clock.to - clock.from) / 2;
      if (half * 2 < clock.length * 0.999) clock.show(at2 - half, at2 + half);
      else clock.go(at2);
    };
    to(event);
    bar.onpointermove = to;
    bar.onpointerup = () => {
      bar.onpointermove = bar.onpointerup = null;
    };
  }
  const shown2 = trim2 ?? { from: 0, to: clock.length };
  const place = (at2) => host.current ? { transform: `translateX(${xOf(at2)}px)` } : { visibility: "hidden" };
  const inside = (at2) => at2 >= clock.from && at2 <= clock.to;
  return /* @__PURE__ */ u3("div", { class: "ruler-box", children: [
    /* @__PURE__ */ u3("div", { class: "overview", ref: overview, onPointerDown: brush, "aria-hidden": "true", children: [
      /* @__PURE__ */ u3("i", {}),
      /* @__PURE__ */ u3("b", {})
    ] }),
    /* @__PURE__ */ u3("div", { class: "ruler", ref: host, onPointerDown: scrub, children: [
      /* @__PURE__ */ u3("canvas", { ref: canvas, "aria-hidden": "true" }),
      !model.dataset?.refusal && inside(shown2.from) && /* @__PURE__ */ u3("div", { class: "handle start", "data-handle": "from", style: place(shown2.from), onPointerDown: (event) => drag(event, "from"), title: "drag to trim the start" }),
      !model.dataset?.refusal && inside(shown2.to) && /* @__PURE__ */ u3("div", { class: "handle end", "data-handle": "to", style: place(shown2.to), onPointerDown: (event) => drag(event, "to"), title: "drag to trim the end" }),
      /* @__PURE__ */ u3(
        "div",
        {
          class: "cursor main",
          ref: cursor,
          "data-testid": "time-cursor",
          role: "slider",
          tabIndex: 0,
          "aria-label": "Time",
          "aria-valuemin": 0,
          "aria-valuemax": Math.round(clock.length / 1e6),
          "aria-valuenow": 0,
          children: /* @__PURE__ */ u3("span", { ref: label })
        }
      )
    ] })
  ] });
}

// src/episode.tsx
var NO_MARKS = { events: [], gaps: [] };
function useEpisode(id) {
  const model = useModel();
  const [info, setInfo] = d2(null);
  const [failure, setFailure] = d2("");
  const [turn2, setTurn] = d2(0);
  const growing = info?.is_unfinished && info.id === id ? JSON.stringify(model.live?.recordings) + model.live?.generation : "";
  _2(() => {
    if (!id) return setInfo(null);
    const abort = new AbortController();
    getJson("episode", { episode: id }, abort.signal).then((found) => {
      setInfo((before) => JSON.stringify(before) === JSON.stringify(found) ? before : found);
      setFailure("");
    }).catch((error) => {
      if (error.name === "AbortError") return;
      setInfo(null);
      setFailure(`${error.message} ${error.hint ?? ""}`);
    });
    return () => abort.abort();
  }, [id, turn2, growing]);
  return { info: id ? info : null, failure, reload: () => setTurn((n2) => n2 + 1) };
}
function useMarks(info) {
  const [found, setFound] = d2(null);
  const of = info ? `${info.id} ${info.start_ns}` : "";
  y2(() => {
    if (!info) return;
    const base = BigInt(info.start_ns);
    const abort = new AbortController();
    const rest = (text) => Number(BigInt(text) - base);
    getJson(
      "events",
      { episode: info.id },
      abort.signal
    ).then(
      (found2) => setFound({
        of,
        marks: {
          events: found2.events.map((each) => ({ ...each, at: rest(each.at_ns) })),
          gaps: found2.gaps.map((each) => ({ signal: each.signal, from: rest(each.from_ns), to: rest(each.to_ns) }))
        }
      })
    ).catch(complain);
    return () => abort.abort();
  }, [info]);
  return found?.of === of ? found.marks : null;
}
function EpisodePage() {
  const model = useModel();
  const { info, failure, reload } = useEpisode(model.episodeId);
  const other = useEpisode(model.otherId);
  const marks = useMarks(info);
  const otherMarks = useMarks(other.info);
  const [trim2, setTrim] = d2(null);
  open.info = info;
  open.reload = reload;
  open.trim = trim2;
  open.setTrim = setTrim;
  open.marks = marks;
  const opened3 = A2("");
  const key = info ? `${info.id} ${info.start_ns} ${info.stop_ns}` : "";
  if (info && opened3.current !== key) {
    const follows = opened3.current.startsWith(`${info.id} `) && info.is_unfinished && clock.at >= clock.length;
    const isOther = !opened3.current.startsWith(`${info.id} `);
    opened3.current = key;
    clock.open(BigInt(info.start_ns), BigInt(info.stop_ns), !isOther);
    if (isOther) clock.at = info.is_unfinished ? clock.length : firstSight2(info);
    clock.wanted?.();
    clock.wanted = null;
    if (follows) clock.at = clock.length;
  }
  y2(() => set({}), [info]);
  y2(() => setTrim(null), [key]);
  y2(() => clock.tell(), [key]);
  y2(() => void (marks && marksCame()), [marks]);
  if (failure) return /* @__PURE__ */ u3("main", { class: "centre", children: /* @__PURE__ */ u3("div", { class: "blank", children: [
    /* @__PURE__ */ u3("p", { class: "failure", role: "alert", children: failure }),
    /* @__PURE__ */ u3("p", { class: "dim", children: "Choose another episode in the list." })
  ] }) });
  if (!info && model.dataset?.episodes === 0 && model.dataset.is_root && !model.live?.recordings.length)
    return /* @__PURE__ */ u3("main", { class: "centre", children: /* @__PURE__ */ u3("div", { class: "blank", children: [
      /* @__PURE__ */ u3("p", { children: "Nothing was recorded into this root so far. From Python:" }),
      /* @__PURE__ */ u3("pre", { class: "sample", children: `import warpdata as wd

with wd.record(${JSON.stringify(model.dataset.name)}) as rec:
    rec.append("joints", [0.1, 0.2])` })
    ] }) });
  if (!info) return /* @__PURE__ */ u3("main", { class: "centre", children: !model.episodeId && model.where && /* @__PURE__ */ u3("p", { class: "blank", children: "Choose an episode." }) });
  return /* @__PURE__ */ u3("main", { class: "centre", "data-episode": info.id, children: [
    /* @__PURE__ */ u3(EpisodeBar, { info, trim: trim2 }),
    other.info && /* @__PURE__ */ u3("div", { class: "which two", children: [info, other.info].map((each) => /* @__PURE__ */ u3("p", { class: "cut", children: [
      /* @__PURE__ */ u3("strong", { children: named(each.id) }),
      " ",
      /* @__PURE__ */ u3("span", { class: "dim", children: [
        taskOf(each),
        " · ",
        lengthOf(each)
      ] })
    ] }, each.id)) }),
    /* @__PURE__ */ u3("div", { class: other.info ? "stage two" : "stage", children: [
      /* @__PURE__ */ u3(Cameras, { info, isFirst: true }),
      other.info && /* @__PURE__ */ u3(Cameras, { info: other.info })
    ] }),
    /* @__PURE__ */ u3(Controls, { info }),
    /* @__PURE__ */ u3(Ruler, { marks: marks ?? NO_MARKS, findings: info.findings ?? [], trim: trim2 }),
    /* @__PURE__ */ u3("div", { class: other.info ? "lower two" : "lower", children: [
      /* @__PURE__ */ u3(Plots, { info, marks: marks ?? NO_MARKS }),
      other.info && /* @__PURE__ */ u3(Plots, { info: other.info, marks: otherMarks ?? NO_MARKS })
    ] })
  ] });
}
function firstSight2(info) {
  const firsts = info.signals.filter((each) => each.shows === "camera" && each.first_ns).map((each) => Number(BigInt(each.first_ns) - BigInt(info.start_ns)));
  return Math.max(0, ...firsts);
}
var taskOf = (info) => typeof info.static.task === "string" ? info.static.task : "";
var lengthOf = (info) => spoken(Number(BigInt(info.stop_ns) - BigInt(info.start_ns))) + (info.steps ? ` · ${info.steps.count} steps` : "");
function EpisodeBar({ info, trim: trim2 }) {
  const { dataset, otherId } = useModel();
  const refusal = info.is_unfinished ? "the recording goes on" : dataset?.refusal;
  const button = (label, key, run, off2 = false, isOn) => /* @__PURE__ */ u3("button", { disabled: Boolean(refusal) || off2, "aria-pressed": isOn, title: refusal ?? `${label} (${key})`, onClick: () => run(), children: label });
  return /* @__PURE__ */ u3("header", { class: "episode-bar", children: [
    /* @__PURE__ */ u3("h1", { title: info.id, children: named(info.id) }),
    /* @__PURE__ */ u3("span", { class: "dim cut", title: taskOf(info), children: taskOf(info) }),
    /* @__PURE__ */ u3("span", { class: "dim", children: lengthOf(info) }),
    info.is_unfinished && /* @__PURE__ */ u3("span", { class: "badge bad", children: "recording" }),
    info.is_unfinished && /* @__PURE__ */ u3(RecordingCounts, { id: info.id }),
    badgesOf(info).map(([rule, found]) => /* @__PURE__ */ u3("span", { class: `badge ${found[0].severity === "damaged" ? "bad" : "warn"}`, title: found.map((each) => `${each.signal ?? ""} ${each.message}`.trim()).join("\n"), children: [
      rule,
      found.length > 1 ? ` ×${found.length}` : ""
    ] }, rule)),
    /* @__PURE__ */ u3("span", { class: "space" }),
    otherId && /* @__PURE__ */ u3("button", { onClick: () => set({ otherId: null }), title: "c", children: [
      "Close ",
      named(otherId)
    ] }),
    /* @__PURE__ */ u3("span", { class: "buttons", role: "group", "aria-label": "Edit", children: [
      button("Trim", "x", trim, !trim2),
      button("Split", "s", split),
      button("✓ success", "y", () => mark("success", true), false, info.static.success === true),
      button("✗ failure", "n", () => mark("success", false), false, info.static.success === false),
      button("Drop", "d", drop),
      button("Undo", "u", undo),
      button("Redo", "r", redo)
    ] })
  ] });
}
function badgesOf(info) {
  const found = /* @__PURE__ */ new Map();
  const order = (each) => Number(each.severity !== "damaged");
  for (const each of [...info.findings ?? []].sort((a3, b) => order(a3) - order(b)))
    if (each.severity !== "info") found.set(each.rule, [...found.get(each.rule) ?? [], each]);
  return [...found].slice(0, 4);
}
function Icon({ path }) {
  return /* @__PURE__ */ u3("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", children: /* @__PURE__ */ u3("path", { d: path }) });
}
var ICONS = {
  start: "M2 2h2v12H2zM14 2v12L5 8z",
  before: "M10 2v12L3 8zM11 2h2v12h-2z",
  play: "M3 1l11 7-11 7z",
  pause: "M3 2h4v12H3zM9 2h4v12H9z",
  next: "M6 2v12l7-6zM3 2h2v12H3z",
  end: "M12 2h2v12h-2zM2 2v12l9-6z",
  save: "M7 1h2v7h3l-4 4-4-4h3zM2 13h12v2H2z"
};
function Controls({ info }) {
  const { dataset, playing, speed } = useModel();
  return /* @__PURE__ */ u3("div", { class: "controls", role: "group", "aria-label": "Time", children: [
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "To the start", title: "Home", onClick: () => clock.go(0), children: /* @__PURE__ */ u3(Icon, { path: ICONS.start }) }),
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "Frame before", title: "←", onClick: () => step(-1), children: /* @__PURE__ */ u3(Icon, { path: ICONS.before }) }),
    /* @__PURE__ */ u3("button", { class: "play", "aria-label": playing ? "Pause" : "Play", title: "Space", onClick: () => clock.play(), children: /* @__PURE__ */ u3(Icon, { path: playing ? ICONS.pause : ICONS.play }) }),
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "Next frame", title: "→", onClick: () => step(1), children: /* @__PURE__ */ u3(Icon, { path: ICONS.next }) }),
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "To the end", title: "End", onClick: () => clock.go(clock.length), children: /* @__PURE__ */ u3(Icon, { path: ICONS.end }) }),
    /* @__PURE__ */ u3("label", { children: [
      /* @__PURE__ */ u3("span", { class: "sr", children: "Speed" }),
      /* @__PURE__ */ u3("select", { value: String(speed), onChange: (event) => set({ speed: Number(event.currentTarget.value) }), children: [0.1, 0.25, 0.5, 1, 2, 4, 8].map((each) => /* @__PURE__ */ u3("option", { value: String(each), children: [
        each,
        "×"
      ] }, each)) })
    ] }),
    /* @__PURE__ */ u3(WallClock, {}),
    info.signals.filter((each) => each.kind === "sound" && each.count > 0).map((each) => /* @__PURE__ */ u3(Sound, { info, signal: each }, `${info.id}/${each.name}`)),
    /* @__PURE__ */ u3("button", { class: "quiet", title: "e", onClick: () => nextEvent(true), children: "next event" }),
    /* @__PURE__ */ u3("button", { class: "quiet", title: "g", onClick: () => nextGap(true), children: "next gap" }),
    info.signals.some((each) => each.role === "prediction") && /* @__PURE__ */ u3("button", { class: "quiet", title: "w", onClick: () => void worstError().catch(complain), children: "worst error" }),
    dataset?.has_moments && /* @__PURE__ */ u3("button", { class: "quiet", title: "m", onClick: momentsLikeThis, children: "moments like this" }),
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "Zoom out", title: "-", onClick: () => clock.zoom(2), children: "−" }),
    /* @__PURE__ */ u3("button", { class: "quiet", title: "0", onClick: () => clock.show(0, clock.length), children: "all" }),
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "Zoom in", title: "+", onClick: () => clock.zoom(0.5), children: "+" })
  ] });
}
var APART_S = 0.12;
function Sound({ info, signal }) {
  const { playing, speed } = useModel();
  const player = A2(null);
  const [address2, setAddress] = d2("");
  const [isOn, setOn] = d2(true);
  const start2 = Number(BigInt(signal.first_ns) - BigInt(info.start_ns));
  y2(() => void soundAddress(info.id, signal.number).then(setAddress).catch(complain), [info.id, signal.count]);
  y2(() => {
    const follow2 = () => {
      const sound = player.current;
      const at2 = (clock.at - start2) / 1e9;
      const isInside = at2 >= 0 && at2 < (sound.duration || Infinity);
      sound.playbackRate = speed;
      if (isInside && Math.abs(sound.currentTime - at2) > APART_S * Math.max(1, speed)) sound.currentTime = at2;
      if (!isInside || !playing || !isOn) sound.pause();
      else if (sound.paused) sound.play().catch(() => void 0);
    };
    follow2();
    return clock.onMove(follow2);
  }, [playing, speed, isOn, start2]);
  return /* @__PURE__ */ u3("label", { class: "sound", title: `Play ${signal.name}`, children: [
    /* @__PURE__ */ u3("input", { type: "checkbox", checked: isOn, onChange: (event) => setOn(event.currentTarget.checked) }),
    /* @__PURE__ */ u3("span", { children: signal.name }),
    /* @__PURE__ */ u3("audio", { ref: player, src: address2 || void 0, preload: "auto", "data-testid": "sound", "data-signal": signal.name })
  ] });
}
var CALENDAR_NS = 10n ** 18n;
function WallClock() {
  const text = A2(null);
  y2(() => {
    const tell = () => {
      if (!text.current) return;
      const at2 = clock.time;
      text.current.textContent = clock.base < CALENDAR_NS ? "" : `${new Date(Number(at2 / 1000000n)).toISOString().replace("T", " ").replace("Z", "")} UTC`;
    };
    tell();
    return clock.onMove(tell);
  });
  return /* @__PURE__ */ u3("span", { class: "dim when", ref: text, "aria-label": "Time of the day" });
}
var GAP = 8;
var CAPTION = 20;
var NARROW = 210;
var STAGE = 0.42;
var NARROW_STAGE = 0.62;
var NARROW_PAGE = 700;
function arrange(box, ratios) {
  let best = { columns: ratios.length, height: 0 };
  for (let lines = 1; lines <= ratios.length; lines++) {
    const columns = Math.ceil(ratios.length / lines);
    let height = (box.height - (lines - 1) * GAP) / lines - CAPTION;
    for (let first = 0; first < ratios.length; first += columns) {
      const line = ratios.slice(first, first + columns);
      height = Math.min(height, (box.width - (line.length - 1) * GAP) / line.reduce((sum2, each) => sum2 + each, 0));
    }
    if (Math.floor(height) > best.height) best = { columns, height: Math.floor(height) };
  }
  return best;
}
function frameSize(signal) {
  const [a3 = 1, b = 1, c3] = signal.shape;
  return c3 !== void 0 && ![1, 3, 4].includes(c3) ? [b, c3] : [a3, b];
}
function Cameras({ info, isFirst = false }) {
  const host = A2(null);
  const [box, setBox] = d2({ width: 0, height: 0 });
  const shown2 = T2(() => info.signals.filter((each) => each.shows === "camera" && each.count > 0), [info]);
  _2(() => {
    if (!host.current) return;
    const page = host.current.closest(".centre");
    const look = () => {
      const next = { width: host.current.clientWidth, height: page.clientHeight * (innerWidth > NARROW_PAGE ? STAGE : NARROW_STAGE) };
      setBox((old) => old.width === next.width && old.height === next.height ? old : next);
    };
    look();
    const watch = new ResizeObserver(look);
    watch.observe(host.current);
    watch.observe(page);
    return () => watch.disconnect();
  }, [shown2.length > 0]);
  y2(() => {
    if (isFirst && !shown2.length) open.frameTimes = new Float64Array(0);
  }, [info]);
  if (!shown2.length) return /* @__PURE__ */ u3("p", { class: "blank no-cameras dim", children: "No cameras in this episode." });
  const sizes = shown2.map(frameSize);
  const { columns, height } = arrange(box, sizes.map(([high2, wide]) => wide / high2));
  const lines = Array.from({ length: Math.ceil(shown2.length / columns) }, (_4, line) => shown2.slice(line * columns, (line + 1) * columns));
  return /* @__PURE__ */ u3("div", { class: "cameras", ref: host, children: lines.map((line, number) => /* @__PURE__ */ u3("div", { class: "line", children: line.map((each) => {
    const [high2, wide] = frameSize(each);
    const size = { height, width: Math.floor(height * wide / high2) };
    return /* @__PURE__ */ u3(CameraView, { info, signal: each, size, leads: isFirst && each === shown2[0] }, `${info.id}/${each.name}`);
  }) }, number)) });
}
function CameraView({ info, signal, size, leads }) {
  const canvas = A2(null);
  const caption = A2(null);
  const retell = A2(() => void 0);
  const [failure, setFailure] = d2("");
  const base = BigInt(info.start_ns);
  y2(() => {
    const camera = new Camera(info.id, signal, base, (picture, row) => {
      const target = canvas.current;
      if (!target) return;
      const paint = target.getContext("2d");
      if (!picture) paint.clearRect(0, 0, target.width, target.height);
      else if (picture instanceof ImageData) paint.putImageData(picture, 0, 0);
      else paint.drawImage(picture, 0, 0, target.width, target.height, 0, 0, target.width, target.height);
      setFailure("");
      target.dataset.row = String(row);
      target.dataset.tsNs = row < 0 ? "" : (base + BigInt(Math.round(camera.times[row]))).toString();
      tell();
    }, setFailure);
    const tell = () => {
      if (!caption.current) return;
      const row = camera.wanted;
      const age = row < 0 ? "no frame yet" : `age ${spoken(clock.at - camera.times[row])}`;
      const isNarrow = caption.current.closest("figure").clientWidth < NARROW;
      caption.current.textContent = isNarrow ? age : `${Math.max(row + 1, 0)}/${camera.times.length} · ${age}`;
    };
    const move = () => {
      camera.show(clock.at, state.playing);
      tell();
    };
    retell.current = tell;
    let stop = () => void 0;
    let isGone = false;
    camera.open().then(() => {
      if (isGone) return;
      if (leads) open.frameTimes = camera.times;
      stop = clock.onMove(move);
      move();
    }).catch((error) => setFailure(error.message));
    return () => {
      isGone = true;
      stop();
      camera.close();
    };
  }, [info]);
  y2(() => retell.current(), [size.width]);
  const [height, width] = frameSize(signal);
  return /* @__PURE__ */ u3("figure", { class: "camera", style: { width: `${size.width}px` }, children: [
    /* @__PURE__ */ u3(
      "canvas",
      {
        ref: canvas,
        width,
        height,
        role: "img",
        "aria-label": `Camera ${signal.name}`,
        "data-testid": "camera",
        "data-signal": signal.name,
        class: size.width > width * 4 ? "pixels" : "",
        style: { width: `${size.width}px`, height: `${size.height}px` }
      }
    ),
    failure && /* @__PURE__ */ u3("p", { class: "failure over", role: "alert", children: failure }),
    /* @__PURE__ */ u3("figcaption", { children: [
      /* @__PURE__ */ u3("strong", { class: "cut", title: signal.name, children: signal.name }),
      /* @__PURE__ */ u3("span", { class: "dim", ref: caption }),
      signal.kind === "image" && !siteName() && /* @__PURE__ */ u3("a", { class: "dim save", href: videoAddress({ episode: info.id, signal: signal.number }), download: true, title: "save the video", "aria-label": `Save the video of ${signal.name}`, children: /* @__PURE__ */ u3(Icon, { path: ICONS.save }) })
    ] })
  ] });
}
var PATIENCE_MS2 = 150;
function Plots({ info, marks }) {
  const model = useModel();
  const [held, setHeld] = d2(/* @__PURE__ */ new Map());
  const groups = T2(() => groupsOf(info), [info, model.plotOrder]);
  y2(() => {
    let busy = false;
    let again = false;
    let gone = false;
    const base = BigInt(info.start_ns);
    const ask2 = async () => {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      try {
        const found = await getJson("at", { episode: info.id, at: base + BigInt(Math.round(clock.at)) });
        if (!gone) setHeld(new Map(found.values.map((each) => [keyOf(each), each])));
      } catch {
      }
      busy = false;
      if (again && !gone) {
        again = false;
        setTimeout(ask2, state.playing ? 60 : 0);
      }
    };
    let soon = 0;
    let since = 0;
    const look = () => {
      soon = 0;
      if (state.playing || isSettled() || performance.now() - since > PATIENCE_MS2) void ask2();
      else soon = requestAnimationFrame(look);
    };
    const stop = clock.onMove(() => {
      if (soon) return;
      since = performance.now();
      soon = requestAnimationFrame(look);
    });
    void ask2();
    return () => {
      gone = true;
      cancelAnimationFrame(soon);
      stop();
    };
  }, [info]);
  const texts = info.signals.filter((each) => each.shows === "text" && each.count > 0);
  const dragTo = (from, to) => {
    if (!from || from === to) return;
    const names = groups.map((each) => each.main.name).filter((each) => each !== from);
    names.splice(names.indexOf(to), 0, from);
    set({ plotOrder: names });
  };
  const moveBy = (name, by) => {
    const names = groups.map((each) => each.main.name);
    const at2 = names.indexOf(name);
    const to = Math.min(Math.max(at2 + by, 0), names.length - 1);
    names.splice(to, 0, ...names.splice(at2, 1));
    set({ plotOrder: names });
  };
  return /* @__PURE__ */ u3("div", { class: "plots", children: [
    info.problems.map((each) => /* @__PURE__ */ u3("p", { class: "failure", children: [
      each.signal,
      ": ",
      each.message,
      " ",
      each.hint
    ] }, each.signal)),
    groups.map((group) => /* @__PURE__ */ u3(Plot, { info, group, held, gaps: marks.gaps.filter((each) => numbersOf(group).has(each.signal)), onDragTo: dragTo, onMoveBy: moveBy }, group.main.name)),
    texts.map((each) => /* @__PURE__ */ u3("section", { class: "texts", "aria-label": `Texts of ${each.name}`, children: [
      /* @__PURE__ */ u3("header", { children: [
        /* @__PURE__ */ u3("strong", { children: each.name }),
        /* @__PURE__ */ u3("span", { class: "dim role", children: each.role })
      ] }),
      /* @__PURE__ */ u3("p", { class: "now", children: held.get(keyOf(each))?.text ?? "" }),
      /* @__PURE__ */ u3("ol", { children: marks.events.filter((one) => one.signal === each.number).slice(0, 200).map((one) => /* @__PURE__ */ u3("li", { children: /* @__PURE__ */ u3("button", { class: "quiet", onClick: () => clock.go(one.at), children: [
        /* @__PURE__ */ u3("span", { class: "dim", children: [
          (one.at / 1e9).toFixed(3),
          " s"
        ] }),
        " ",
        one.text
      ] }) }, one.at)) })
    ] }, each.name)),
    !groups.length && !texts.length && /* @__PURE__ */ u3("p", { class: "blank dim", children: "No signals to plot." })
  ] });
}

// src/keys.tsx
var KEYS = [
  ["Time", [
    ["Space", "play or pause", () => clock.play()],
    ["ArrowRight", "next frame", () => step(1)],
    ["ArrowLeft", "frame before", () => step(-1)],
    ["Shift+ArrowRight", "one second on", () => clock.go(clock.at + 1e9)],
    ["Shift+ArrowLeft", "one second back", () => clock.go(clock.at - 1e9)],
    ["Home", "to the start", () => clock.go(0)],
    ["End", "to the end", () => clock.go(clock.length)],
    [".", "faster", () => faster(1)],
    [",", "slower", () => faster(-1)],
    ["+", "zoom in", () => clock.zoom(0.5)],
    ["-", "zoom out", () => clock.zoom(2)],
    ["0", "show all", () => clock.show(0, clock.length)],
    ["<", "move the window back", () => clock.pan(-0.25)],
    [">", "move the window on", () => clock.pan(0.25)]
  ]],
  ["Jump", [
    ["e", "next event", () => nextEvent(true)],
    ["Shift+E", "event before", () => nextEvent(false)],
    ["g", "next gap", () => nextGap(true)],
    ["Shift+G", "gap before", () => nextGap(false)],
    ["w", "worst prediction error, then the next worst", () => worstError().catch(complain)],
    ["m", "moments like this one", momentsLikeThis],
    ["j", "next episode", () => neighbour(1)],
    ["k", "episode before", () => neighbour(-1)]
  ]],
  ["Edit", [
    ["[", "trim: begin here", trimFrom],
    ["]", "trim: end here", trimTo],
    ["x", "trim to the handles", trim],
    ["s", "split here", split],
    ["y", "mark as success", () => mark("success", true)],
    ["n", "mark as failure", () => mark("success", false)],
    ["d", "drop the episode", drop],
    ["u", "undo", undo],
    ["r", "redo", redo]
  ]],
  ["View", [
    ["/", "filter the list", () => document.querySelector("[data-testid=filter]")?.focus()],
    ["l", "list", () => set({ listOpen: !state.listOpen })],
    ["i", "static items", () => set({ drawer: state.drawer === "statics" ? null : "statics" })],
    ["o", "statistics of the selection", () => set({ drawer: state.drawer === "stats" ? null : "stats" })],
    ["h", "edit history", () => set({ drawer: state.drawer === "history" ? null : "history" })],
    ["c", "beside another episode", compare2],
    ["Shift+J", "another episode beside: the next", () => otherNeighbour(1)],
    ["Shift+K", "another episode beside: the one before", () => otherNeighbour(-1)],
    ["t", "dark or light", theme],
    ["Shift+S", "copy the link to this moment", share],
    ["?", "these keys", () => set({ help: !state.help })],
    ["Escape", "close", () => state.help ? set({ help: false }) : open.trim ? open.setTrim(null) : set({ drawer: null })]
  ]]
];
var BY_KEY = new Map(KEYS.flatMap(([, keys]) => keys.map(([key, , run]) => [key, run])));
function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    const target = event.target;
    const types = target.matches("input, textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (types && event.key !== "Escape") return;
    if (types) return target.blur();
    if (target.matches("button, a, summary, [role=slider]") && (event.key === " " || event.key === "Enter")) return;
    const letter = event.key === " " ? "Space" : event.key;
    const name = event.shiftKey && (letter.length > 1 || /[A-Z]/.test(letter)) ? `Shift+${letter}` : letter;
    const run = BY_KEY.get(name);
    if (!run) return;
    event.preventDefault();
    run();
  });
}
function Help() {
  const { help } = useModel();
  const close = A2(null);
  y2(() => {
    if (!help) return;
    const before = document.activeElement;
    close.current?.focus();
    return () => before?.focus();
  }, [help]);
  if (!help) return null;
  return /* @__PURE__ */ u3("div", { class: "veil", onClick: () => set({ help: false }), children: /* @__PURE__ */ u3("div", { class: "help", role: "dialog", "aria-modal": "true", "aria-label": "Keys", onClick: (event) => event.stopPropagation(), children: [
    /* @__PURE__ */ u3("header", { children: [
      /* @__PURE__ */ u3("h2", { children: "Keys" }),
      /* @__PURE__ */ u3("button", { ref: close, class: "quiet", "aria-label": "Close", onClick: () => set({ help: false }), children: "✕" })
    ] }),
    /* @__PURE__ */ u3("div", { class: "help-columns", children: KEYS.map(([title, keys]) => /* @__PURE__ */ u3("section", { children: [
      /* @__PURE__ */ u3("h3", { children: title }),
      /* @__PURE__ */ u3("dl", { children: keys.map(([key, says]) => /* @__PURE__ */ u3("div", { children: [
        /* @__PURE__ */ u3("dt", { children: /* @__PURE__ */ u3("kbd", { children: key.replace("Arrow", "").replace("Right", "→").replace("Left", "←") }) }),
        /* @__PURE__ */ u3("dd", { children: says })
      ] }, key)) })
    ] }, title)) }),
    /* @__PURE__ */ u3("p", { class: "dim", children: "In plots: drag to zoom, Ctrl and wheel to zoom, Shift and drag to move, double click for all. Tab goes to the plots: Enter hides one, Alt with ↑ or ↓ moves it." })
  ] }) });
}

// src/main.tsx
var calledFor = (name) => /^(\/|\w+:\/\/)/.test(name) ? name.split("/").filter(Boolean).at(-1) ?? name : name;
function Top() {
  const model = useModel();
  const [text, setText] = d2(model.where);
  y2(() => setText(model.where), [model.where]);
  return /* @__PURE__ */ u3("header", { class: "top", children: [
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "List of episodes", "aria-expanded": model.listOpen, title: "l", onClick: () => set({ listOpen: !state.listOpen }), children: "☰" }),
    /* @__PURE__ */ u3("strong", { class: "name cut", title: model.dataset?.name, children: calledFor(model.dataset?.name ?? "") }),
    /* @__PURE__ */ u3(
      "form",
      {
        class: "filter",
        role: "search",
        onSubmit: (event) => {
          event.preventDefault();
          set({ where: text.trim() });
        },
        children: [
          /* @__PURE__ */ u3(
            "input",
            {
              "data-testid": "filter",
              type: "search",
              value: text,
              spellcheck: false,
              autocomplete: "off",
              "aria-label": "Filter episodes by a SQL condition",
              "aria-invalid": Boolean(model.whereError),
              placeholder: "filter: success and duration_s > 5",
              list: "columns",
              onInput: (event) => setText(event.currentTarget.value),
              onSearch: () => text === "" && set({ where: "" }),
              onChange: (event) => set({ where: event.currentTarget.value.trim() })
            }
          ),
          /* @__PURE__ */ u3("datalist", { id: "columns", children: model.dataset?.columns.map((each) => /* @__PURE__ */ u3("option", { value: each.name }, each.name)) }),
          model.whereError && /* @__PURE__ */ u3("p", { class: "failure", role: "alert", children: model.whereError })
        ]
      }
    ),
    /* @__PURE__ */ u3("span", { class: "space" }),
    /* @__PURE__ */ u3("button", { class: "quiet", title: "o", onClick: () => set({ drawer: state.drawer === "stats" ? null : "stats" }), children: "Statistics" }),
    /* @__PURE__ */ u3("button", { class: "quiet", title: "i", onClick: () => set({ drawer: state.drawer === "statics" ? null : "statics" }), children: "Details" }),
    /* @__PURE__ */ u3("button", { class: "quiet", title: "Shift+S", onClick: () => void share(), children: "Share" }),
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "Dark or light", title: "t", onClick: theme, children: "◐" }),
    /* @__PURE__ */ u3("button", { class: "quiet", "aria-label": "Keys", title: "?", onClick: () => set({ help: true }), children: "?" })
  ] });
}
function App() {
  const model = useModel();
  if (model.fatal)
    return /* @__PURE__ */ u3("div", { class: "blank", children: [
      /* @__PURE__ */ u3("h1", { children: "The viewer is not open" }),
      /* @__PURE__ */ u3("p", { children: model.fatal.message }),
      /* @__PURE__ */ u3("p", { class: "dim", children: model.fatal.hint })
    ] });
  return /* @__PURE__ */ u3("div", { class: `page${model.listOpen ? "" : " no-list"}${model.drawer ? " with-drawer" : ""}`, children: [
    /* @__PURE__ */ u3(Top, {}),
    /* @__PURE__ */ u3("div", { class: model.listOpen ? "left" : "left closed", children: /* @__PURE__ */ u3(EpisodeList, {}) }),
    /* @__PURE__ */ u3(EpisodePage, {}),
    /* @__PURE__ */ u3(Drawer, {}),
    /* @__PURE__ */ u3(Help, {}),
    model.notice && /* @__PURE__ */ u3("div", { class: `notice${model.notice.bad ? " bad" : ""}`, role: "status", children: [
      model.notice.text,
      model.notice.hint && /* @__PURE__ */ u3("span", { class: "dim", children: [
        " ",
        model.notice.hint
      ] })
    ] })
  ] });
}
window.warpdata = {
  get time_ns() {
    return Number(clock.time);
  },
  set time_ns(at2) {
    clock.go(Number(BigInt(at2) - clock.base));
  },
  get time_text() {
    return clock.time.toString();
  },
  get is_settled() {
    return isSettled();
  }
};
async function askChecks() {
  const checks = await getJson("checks", {});
  if (JSON.stringify(checks) === JSON.stringify(state.checks)) return checks;
  const info = open.info;
  const isCompared = checks.checked >= checks.total && state.checks && state.checks.checked < state.checks.total;
  const isStale = info && (!info.findings || isCompared || checks.worst[info.id] !== state.checks?.worst[info.id]);
  set({ checks });
  if (isStale) open.reload();
  return checks;
}
async function watchChecks() {
  for (; ; ) {
    try {
      const checks = await askChecks();
      const isDone = checks.checked >= checks.total || !checks.wanted;
      await new Promise((resolve) => setTimeout(resolve, isDone ? 1e4 : 1500));
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 1e4));
    }
  }
}
async function start() {
  const page = document.getElementById("app");
  try {
    await connect();
    readAddress();
    page.replaceChildren();
    G(/* @__PURE__ */ u3(App, {}), page);
    await loadDataset();
  } catch (error) {
    const hint = error instanceof Refused ? error.hint : "";
    set({ fatal: { message: error.message, hint } });
    G(/* @__PURE__ */ u3(App, {}), page);
    return;
  }
  document.title = `${state.dataset.name} – warpdata`;
  checkLink();
  keepAddress();
  listenToKeys();
  void watchChecks();
  if (state.dataset.is_root || state.dataset.draft)
    void follow("live", (heard) => {
      const live = heard;
      const isNew = live.generation !== state.dataset?.generation;
      const isChecked = live.checks !== state.live?.checks;
      set({ live });
      if (isNew || isChecked) void askChecks().catch(complain);
      if (!isNew || isEditing) return;
      void loadDataset().catch(complain);
      open.reload();
    });
}
void start();
